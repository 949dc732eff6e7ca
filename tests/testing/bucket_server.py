# SPDX-License-Identifier: Apache-2.0
"""Servers of s3:// and gs:// on loopback, and a proxy that injects faults.

They keep objects in memory, in processes of their own: moto's server, and
`gcs_server`. A test module binds the fixtures `job` and `proxy` to names of its
own; `SCHEMES` are parameters of `proxy`, which is one of s3:// without.
"""

# bazel: deps=@pypi//flask,@pypi//flask_cors,@pypi//moto
# bazel: deps=@pypi//gcsfs,@pypi//s3fs
from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from pax.files import storage
from tests.testing import gcs_server, polling

# Python's words of a server, without its port.
_SERVERS = {
  's3': (
    '-c',
    'import sys; from moto.server import main; main(sys.argv[1:])',
    '-H127.0.0.1',
    '-p',
  ),
  'gs': ('-m', gcs_server.__name__),
}
_TIMEOUT_SECS = 120
# Of a body, what a policy needs: the name, in some uploads to gs://.
_HEAD = {'s3': 16, 'gs': 1024}
# What a proxy does with a request, by its method and path.
FORWARD, ERROR_500, CUT, HANG = 'forward', 'error 500', 'cut', 'hang'
Policy = Callable[[str, str], str]
SCHEMES = pytest.mark.parametrize('proxy', _SERVERS, indirect=True)


def _environment(scheme: str, endpoint: str) -> dict[str, str]:
  """Returns the variables of programs that use a server."""
  if scheme == 'gs':
    return gcs_server.environment(endpoint)
  return {
    'AWS_ENDPOINT_URL': endpoint,
    'AWS_ACCESS_KEY_ID': 'test',
    'AWS_SECRET_ACCESS_KEY': 'test',
    'AWS_REGION': 'us-east-1',
    'AWS_EC2_METADATA_DISABLED': 'true',
    # Quick failures.
    'FSSPEC_S3': '{"config_kwargs": {"connect_timeout": 20, "read_timeout": 3,'
    ' "retries": {"mode": "standard", "max_attempts": 3}}}',
  }


def _create_bucket(scheme: str) -> storage.BucketPath:
  name = f'bucket-{uuid.uuid4().hex}'
  host = _endpoint(scheme).removeprefix('http://')
  connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECS)
  if scheme == 'gs':
    connection.request('POST', '/storage/v1/b', json.dumps({'name': name}))
  else:
    connection.request('PUT', f'/{name}')
  assert connection.getresponse().status == 200
  connection.close()
  return storage.to_path(f'{scheme}://{name}')


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
  """A proxy, which programs find by their environment."""
  proxy = Proxy(getattr(request, 'param', 's3'))
  try:
    with pytest.MonkeyPatch.context() as patch:
      environment = _environment(proxy.scheme, proxy.endpoint)
      for name, value in environment.items():
        patch.setenv(name, value)
      storage._filesystem.cache_clear()
      yield proxy
  finally:
    storage._filesystem.cache_clear()
    proxy.close()


@pytest.fixture
def job(proxy: Proxy) -> storage.BucketPath:
  """The directory of a job in a new bucket behind the proxy."""
  return _create_bucket(proxy.scheme) / 'run'


class Proxy:
  """Forwards requests to a server, except those that a policy makes fail."""

  def __init__(self, scheme: str):
    self.scheme = scheme
    # Replaced while it runs. A request of gs:// has the method and the path of
    # that of s3:// which does the same to an object.
    self.policy: Policy = lambda method, path: FORWARD
    # (method, path, action) of each request.
    self.requests: list[tuple[str, str, str]] = []
    self._released = threading.Event()
    handler = _handler(self, _endpoint(scheme))
    self._server = gcs_server.Server(('127.0.0.1', 0), handler)
    self.endpoint = f'http://127.0.0.1:{self._server.server_address[1]}'
    self._thread = threading.Thread(target=self._server.serve_forever)
    self._thread.start()

  def close(self) -> None:
    """Ends the proxy."""
    self._released.set()
    self._server.shutdown()
    self._thread.join()
    self._server.server_close()

  def hang(self) -> None:
    """Returns when the proxy ends."""
    self._released.wait()


def _handler(
  proxy: Proxy, endpoint: str
) -> type[http.server.BaseHTTPRequestHandler]:
  host = endpoint.removeprefix('http://')

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args: object) -> None:
      pass

    def _handle(self) -> None:
      length = int(self.headers.get('Content-Length') or 0)
      head = self.rfile.read(min(length, _HEAD[proxy.scheme]))
      method, path = self.command, self.path
      if proxy.scheme == 'gs':
        method, path = gcs_server.operation(method, path, head)
      action = proxy.policy(method, path)
      proxy.requests.append((method, path, action))
      if action == HANG:
        proxy.hang()
      if action in (CUT, HANG):
        # In the middle of a large body.
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return
      body = head + self.rfile.read(length - len(head))
      if action == ERROR_500:
        self._answer(500, {}, b'<Error><Code>InternalError</Code></Error>')
        return
      connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECS)
      # Clients may be killed while they wait for the answer.
      with contextlib.closing(connection):
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        self._answer(
          response.status, dict(response.getheaders()), response.read()
        )

    def _answer(
      self, status: int, headers: dict[str, str], body: bytes
    ) -> None:
      self.send_response(status)
      for name, value in headers.items():
        is_length = name.lower() == 'content-length'
        if name.lower() == 'transfer-encoding':
          continue
        if not is_length or self.command == 'HEAD':
          self.send_header(name, value)
      if self.command != 'HEAD':
        self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      if self.command != 'HEAD':
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

  return Handler


@functools.cache
def _endpoint(scheme: str) -> str:
  """Starts a server, which ends with this process; returns its URL."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  process = subprocess.Popen(
    [sys.executable, *_SERVERS[scheme], str(port)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
  )
  atexit.register(process.kill)
  polling.wait_until(lambda: _is_open(port), _TIMEOUT_SECS)
  return f'http://127.0.0.1:{port}'


def _is_open(port: int) -> bool:
  with socket.socket() as client:
    return client.connect_ex(('127.0.0.1', port)) == 0
