# SPDX-License-Identifier: Apache-2.0
"""An S3-compatible server on loopback, and a proxy that injects faults.

The server is moto's, which keeps objects in memory, in a process of its own.
A test module binds its fixtures `job` and `proxy` to names of its own.
"""

# bazel: deps=@pypi//flask,@pypi//flask_cors,@pypi//moto,@pypi//s3fs
from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import http.server
import os
import socket
import socketserver
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from pax import storage
from tests.testing import polling

_SERVE = 'import sys; from moto.server import main; main(sys.argv[1:])'
_TIMEOUT_SECS = 120
# What a proxy does with a request, by its method and path.
FORWARD, ERROR_500, CUT, HANG = 'forward', 'error 500', 'cut', 'hang'
Policy = Callable[[str, str], str]


def environment(endpoint: str) -> dict[str, str]:
  """Returns the variables of programs that use the server."""
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


def _create_bucket(endpoint: str) -> storage.BucketPath:
  name = f'bucket-{uuid.uuid4().hex}'
  host = endpoint.removeprefix('http://')
  connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECS)
  connection.request('PUT', f'/{name}')
  assert connection.getresponse().status == 200
  connection.close()
  return storage.to_path(f's3://{name}')


@pytest.fixture
def proxy() -> Iterator[Proxy]:
  """A proxy, which programs find by their environment."""
  proxy = Proxy(_endpoint())
  try:
    with pytest.MonkeyPatch.context() as patch:
      for name, value in environment(proxy.endpoint).items():
        patch.setenv(name, value)
      storage._filesystem.cache_clear()
      yield proxy
  finally:
    storage._filesystem.cache_clear()
    proxy.close()


@pytest.fixture
def job(proxy: Proxy) -> storage.BucketPath:
  """The directory of a job in a new bucket behind the proxy."""
  return _create_bucket(_endpoint()) / 'run'


class Proxy:
  """Forwards requests to a server, except those that a policy makes fail."""

  def __init__(self, endpoint: str):
    # Replaced while it runs.
    self.policy: Policy = lambda method, path: FORWARD
    # (method, path, action) of each request.
    self.requests: list[tuple[str, str, str]] = []
    self._released = threading.Event()
    self._server = _Server(('127.0.0.1', 0), _handler(self, endpoint))
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


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
  daemon_threads = True
  # Clients connect by many threads at the same time.
  request_queue_size = 128

  def handle_error(self, request, client_address) -> None:
    pass  # Clients that are killed.


def _handler(
  proxy: Proxy, endpoint: str
) -> type[http.server.BaseHTTPRequestHandler]:
  host = endpoint.removeprefix('http://')

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args: object) -> None:
      pass

    def _handle(self) -> None:
      action = proxy.policy(self.command, self.path)
      proxy.requests.append((self.command, self.path, action))
      if action == HANG:
        proxy.hang()
      if action in (CUT, HANG):
        # In the middle of the body.
        self.rfile.read(min(self._length(), 16))
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return
      body = self.rfile.read(self._length())
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

    def _length(self) -> int:
      return int(self.headers.get('Content-Length') or 0)

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
def _endpoint() -> str:
  """Starts the server, which ends with this process; returns its URL."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  process = subprocess.Popen(
    [sys.executable, '-c', _SERVE, '-H', '127.0.0.1', '-p', str(port)],
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
