# SPDX-License-Identifier: Apache-2.0
"""A server of gs:// on loopback, for gcsfs and TensorStore.

    python -m tests.testing.gcs_server PORT

It has the calls of Google's JSON API that they use, with their conditions,
ranges and pages, and keeps objects in memory. Emulators of others lack some:
gcp-storage-emulator ignores conditions and bounds of lists, and Google's
storage-testbench refuses the line ends of gcsfs.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import hashlib
import http.server
import json
import re
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any

_MAX_PAGE = 1000
# The status of an upload that the client gives up.
_CANCELLED = 499
_UPLOAD = re.compile(r'/upload/storage/v1/b/([^/]+)/o')
_BUCKETS = re.compile(r'/storage/v1/b(?:/([^/]+))?')
_LIST = re.compile(r'/storage/v1/b/([^/]+)/o')
_OBJECT = re.compile(r'(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)')
_COPY = re.compile(_OBJECT.pattern + r'/rewriteTo/b/([^/]+)/o/([^/]+)')
_NAME = re.compile(rb'"name": ("(?:[^"\\]|\\.)*")')
# Status, headers and body.
Answer = tuple[int, dict[str, str], bytes]


def environment(endpoint: str) -> dict[str, str]:
  """Returns the variables of programs that use the server."""
  return {
    'STORAGE_EMULATOR_HOST': endpoint,
    'TENSORSTORE_GCS_HTTP_URL': endpoint,
    'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'test',
    # Quick failures.
    'FSSPEC_GS': '{"requests_timeout": 3}',
    # Neither a server with credentials nor, by gRPC, the kind of each bucket is
    # asked for.
    'NO_GCE_CHECK': 'true',
    'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
  }


def operation(method: str, path: str, head: bytes) -> tuple[str, str]:
  """Returns a request as S3 has it, where PUT uploads or copies to a path.

  Args:
    method: Of the request.
    path: With its query.
    head: How its body begins: some uploads have their names there.
  """
  url = urllib.parse.urlsplit(path)
  if match := _UPLOAD.fullmatch(url.path):
    name = urllib.parse.parse_qs(url.query).get('name', [''])[0]
    if not name and (found := _NAME.search(head)):
      name = json.loads(found[1])
    return 'PUT', f'/{match[1]}/{name}'
  if match := _COPY.fullmatch(url.path):
    return 'PUT', f'/{match[3]}/{urllib.parse.unquote(match[4])}'
  if match := _OBJECT.fullmatch(url.path):
    return method, f'/{match[1]}/{urllib.parse.unquote(match[2])}'
  return method, path


@dataclasses.dataclass(frozen=True)
class _Object:
  bucket: str
  name: str
  data: bytes
  generation: int

  def metadata(self) -> dict[str, Any]:
    # Generations are microseconds.
    time = datetime.datetime.fromtimestamp(self.generation / 1e6, datetime.UTC)
    created = f'{time:%Y-%m-%dT%H:%M:%S.%f}'[:-3] + 'Z'
    return {
      'kind': 'storage#object',
      'bucket': self.bucket,
      'name': self.name,
      'size': str(len(self.data)),
      'generation': str(self.generation),
      'metageneration': '1',
      'md5Hash': base64.b64encode(hashlib.md5(self.data).digest()).decode(),
      'timeCreated': created,
      'updated': created,
    }


class _Error(Exception):
  def __init__(self, status: int):
    self.status = status


class _Buckets:
  """Objects of all buckets."""

  def __init__(self) -> None:
    self._buckets: dict[str, dict[str, _Object]] = {}
    # What has arrived of uploads of several requests.
    self._uploads: dict[str, bytes] = {}
    self._generation = 0
    self._lock = threading.Lock()

  def answer(
    self, method: str, path: str, headers: Mapping[str, str], body: bytes
  ) -> Answer:
    url = urllib.parse.urlsplit(path)
    query = dict(urllib.parse.parse_qsl(url.query))
    with self._lock:
      if match := _UPLOAD.fullmatch(url.path):
        if method == 'DELETE':
          del self._uploads[query['upload_id']]
          return _CANCELLED, {}, b''
        return self._upload(match[1], path, query, headers, body)
      if match := _COPY.fullmatch(url.path):
        bucket, name, to, new_name = map(urllib.parse.unquote, match.groups())
        data = self._get(bucket, name, query).data
        copied = self._put(to, new_name, {}, data)
        return _json({'done': True, 'resource': copied.metadata()})
      if match := _OBJECT.fullmatch(url.path):
        name = urllib.parse.unquote(match[2])
        found = self._get(match[1], name, query)
        if method == 'DELETE':
          del self._buckets[match[1]][name]
          return 204, {}, b''
        return _content(found, query, headers.get('Range'))
      if match := _LIST.fullmatch(url.path):
        return _json(self._list(match[1], query))
      if match := _BUCKETS.fullmatch(url.path):
        name = match[1] or json.loads(body)['name']
        if method == 'POST':
          self._buckets[name] = {}
        self._bucket(name)
        return _json({'kind': 'storage#bucket', 'name': name})
    raise _Error(501)

  def _bucket(self, name: str) -> dict[str, _Object]:
    if name not in self._buckets:
      raise _Error(404)
    return self._buckets[name]

  def _get(self, bucket: str, name: str, query: Mapping[str, str]) -> _Object:
    found = self._bucket(bucket).get(name)
    if found is None:
      raise _Error(404)
    _check_conditions(query, found.generation)
    return found

  def _put(
    self, bucket: str, name: str, query: Mapping[str, str], data: bytes
  ) -> _Object:
    found = self._bucket(bucket).get(name)
    _check_conditions(query, found.generation if found else 0)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    self._generation = max(self._generation + 1, int(now * 1e6))
    created = _Object(bucket, name, data, self._generation)
    self._buckets[bucket][name] = created
    return created

  def _upload(
    self,
    bucket: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
  ) -> Answer:
    name, data = query.get('name', ''), body
    if query['uploadType'] == 'multipart':
      name, data = _parts(headers['Content-Type'], body)
    elif query['uploadType'] == 'resumable':
      number = query.get('upload_id')
      if number is None:
        number = str(len(self._uploads))
        self._uploads[number] = b''
        location = f'http://{headers["Host"]}{path}&upload_id={number}'
        return 200, {'Location': location}, b''
      first, last, total = re.findall(r'\d+', headers['Content-Range'])
      data = self._uploads[number] = self._uploads[number][: int(first)] + body
      if int(last) + 1 < int(total):
        return 308, {'Range': f'bytes=0-{len(data) - 1}'}, b''
    return _json(self._put(bucket, name, query, data).metadata())

  def _list(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
    prefix, delimiter = query.get('prefix', ''), query.get('delimiter')
    start, end = query.get('startOffset', ''), query.get('endOffset')
    entries: dict[str, _Object | None] = {}
    for name, found in self._bucket(bucket).items():
      is_before_end = not end or name < end
      if name.startswith(prefix) and start <= name and is_before_end:
        rest = name[len(prefix) :]
        if delimiter and delimiter in rest:
          folder = rest.partition(delimiter)[0] + delimiter
          entries[prefix + folder] = None
        else:
          entries[name] = found
    token = query.get('pageToken', '')
    names = [name for name in sorted(entries) if name > token]
    size = min(int(query.get('maxResults', _MAX_PAGE)), _MAX_PAGE)
    page = [(name, entries[name]) for name in names[:size]]
    result = {
      'kind': 'storage#objects',
      'items': [found.metadata() for _, found in page if found],
      'prefixes': [name for name, found in page if not found],
    }
    return result | ({'nextPageToken': page[-1][0]} if names[size:] else {})


def _check_conditions(query: Mapping[str, str], generation: int) -> None:
  if query.get('ifGenerationMatch') not in (None, str(generation)):
    raise _Error(412)
  if query.get('ifGenerationNotMatch') == str(generation):
    raise _Error(304)


def _content(
  found: _Object, query: Mapping[str, str], wanted: str | None
) -> Answer:
  if query.get('alt') != 'media':
    return _json(found.metadata())
  data = found.data
  headers = {'x-goog-generation': str(found.generation)}
  if wanted is None:
    return 200, headers, data
  first, last = re.fullmatch(r'bytes=(\d+)-(\d*)', wanted).groups()
  start, end = int(first), min(int(last or sys.maxsize) + 1, len(data))
  if start >= len(data):
    raise _Error(416)
  headers['Content-Range'] = f'bytes {start}-{end - 1}/{len(data)}'
  return 206, headers, data[start:end]


def _parts(content_type: str, body: bytes) -> tuple[str, bytes]:
  """Returns the name and the data of an upload of two parts."""
  boundary = re.search(r'boundary="?([^";]+)', content_type)[1].encode()
  _, metadata, rest = body.split(b'--' + boundary, 2)
  # The first line ends as those of this client do.
  line_end = b'\r\n' if metadata.startswith(b'\r\n') else b'\n'
  data = rest.partition(line_end * 2)[2]
  data = data.rpartition(line_end + b'--' + boundary + b'--')[0]
  return json.loads(metadata.partition(line_end * 2)[2])['name'], data


def _json(value: object) -> Answer:
  return 200, {'Content-Type': 'application/json'}, json.dumps(value).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True
  buckets = _Buckets()

  def log_message(self, *args: object) -> None:
    pass

  def _handle(self) -> None:
    body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
    try:
      status, headers, content = self.buckets.answer(
        self.command, self.path, self.headers, body
      )
    except _Error as e:
      status, headers = e.status, {}
      content = json.dumps({'error': {'code': status, 'message': ''}}).encode()
      content = b'' if status == 304 else content
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    if status not in (204, 304):
      self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  do_GET = do_PUT = do_POST = do_DELETE = _handle


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
  """Answers every connection in a thread of its own."""

  daemon_threads = True
  # Clients connect by many threads at the same time.
  request_queue_size = 128

  def handle_error(self, request, client_address) -> None:
    pass  # Clients that are killed.


if __name__ == '__main__':
  Server(('127.0.0.1', int(sys.argv[1])), _Handler).serve_forever()
