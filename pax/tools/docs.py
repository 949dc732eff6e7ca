# SPDX-License-Identifier: Apache-2.0
"""Serves the documentation on this machine.

pax docs --port=8000
"""

from __future__ import annotations

import dataclasses
import functools
import http.server
import io
import mimetypes
import pathlib
import sys
import urllib.parse
import zipfile
from collections.abc import Sequence
from typing import Any

from pax.runner import command_line
from pax.tools import tool
from praxis import value_domains

_USAGE = """\
Serves the documentation of this version on this machine, until Ctrl-C. Wheels
contain it; in a checkout, `./bazelw build //docs:site` builds it.

  pax docs
  pax docs --port=8000"""

# Wheels contain it.
_PACKED = pathlib.Path(__file__).with_name('site.zip')
_ROOT = pathlib.Path(__file__).absolute().parents[2]
# The site of a checkout: built by Bazel, or by tools/docs/build_site.py.
_FOLDERS = (_ROOT / 'bazel-bin/docs/site', _ROOT / 'docs/_build')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  port: int = command_line.flag(
    0,
    'Server',
    'Port on this machine; 0 is a free one.',
    domain=value_domains.interval(ge=0, le=65535),
  )
  site: str | None = command_line.flag(
    None,
    'Server',
    'Folder of the HTML files. Default: that of this version of Pax.',
    is_path=True,
  )


def find_site(folder: str | None = None) -> pathlib.Path:
  """Returns the given folder of HTML files, else that of this version of Pax.

  The latter is one zip file where Pax is installed.

  Raises:
    UsageError: there is none.
  """
  if folder is None and _PACKED.exists():
    return _PACKED
  folders = _FOLDERS if folder is None else (pathlib.Path(folder),)
  for path in folders:
    if (path / 'index.html').exists():
      return path
  if folder is not None:
    raise command_line.UsageError(f'--site={folder} has no index.html')
  raise command_line.UsageError(
    'the documentation is not built here: run ./bazelw build //docs:site in a'
    ' checkout, pass its folder as --site, or read docs/index.md'
  )


def server(site: pathlib.Path, port: int) -> http.server.ThreadingHTTPServer:
  """Returns a server of a folder or a zip file, on the loopback interface."""
  handler = (
    functools.partial(_FolderHandler, directory=str(site))
    if site.is_dir()
    else functools.partial(_ZipHandler, zipfile.ZipFile(site))
  )
  return http.server.ThreadingHTTPServer(('127.0.0.1', port), handler)


def main(argv: Sequence[str] = sys.argv) -> int:
  """Serves until Ctrl-C; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  with server(find_site(options.site), options.port) as pages:
    print(f'http://127.0.0.1:{pages.server_port}/  (Ctrl-C ends)', flush=True)
    try:
      pages.serve_forever()
    except KeyboardInterrupt:
      print()
  return 0


class _FolderHandler(http.server.SimpleHTTPRequestHandler):
  """Serves files and logs no requests."""

  def log_message(self, format: str, *args: object) -> None:
    pass


class _ZipHandler(http.server.BaseHTTPRequestHandler):
  """Serves the members of a zip file and logs no requests."""

  # Path and output of a request; the base class sets them.
  path: str
  wfile: io.BufferedIOBase

  def __init__(self, site: zipfile.ZipFile, *args: Any):
    self._site = site
    super().__init__(*args)

  def do_GET(self) -> None:
    name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)[1:]
    if not name or name.endswith('/'):
      name += 'index.html'
    try:
      data = self._site.read(name)
    except KeyError:
      self.send_error(http.HTTPStatus.NOT_FOUND)
      return
    kind, _ = mimetypes.guess_type(name)
    self.send_response(http.HTTPStatus.OK)
    self.send_header('Content-Type', kind or 'application/octet-stream')
    self.send_header('Content-Length', str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, format: str, *args: object) -> None:
    pass


if __name__ == '__main__':
  tool.run_console(main)
