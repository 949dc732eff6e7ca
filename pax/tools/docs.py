# SPDX-License-Identifier: Apache-2.0
"""Serves the documentation on this machine.

pax docs --port=8000
"""

from __future__ import annotations

import dataclasses
import functools
import http.server
import pathlib
import sys
from collections.abc import Sequence

from pax.runner import command_line
from pax.tools import tool
from praxis import value_domains

_USAGE = """\
Serves the documentation on this machine, until Ctrl-C. In a checkout,
`./bazelw build //docs:site` builds it.

  pax docs
  pax docs --port=8000"""

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
    'Folder of the HTML files. Default: that of the checkout.',
  )


def site_folder(site: str | None = None) -> pathlib.Path:
  """Returns the folder of the HTML files.

  Raises:
    UsageError: there is none.
  """
  folders = _FOLDERS if site is None else (pathlib.Path(site),)
  for folder in folders:
    if (folder / 'index.html').exists():
      return folder
  if site is not None:
    raise command_line.UsageError(f'--site={site} has no index.html')
  raise command_line.UsageError(
    'the documentation is not built here: run ./bazelw build //docs:site in a'
    ' checkout, pass its folder as --site, or read docs/index.md'
  )


def server(folder: pathlib.Path, port: int) -> http.server.ThreadingHTTPServer:
  """Returns a server of a folder, on the loopback interface only."""
  handler = functools.partial(_QuietHandler, directory=str(folder))
  return http.server.ThreadingHTTPServer(('127.0.0.1', port), handler)


def main(argv: Sequence[str] = sys.argv) -> int:
  """Serves until Ctrl-C; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  with server(site_folder(options.site), options.port) as pages:
    print(f'http://127.0.0.1:{pages.server_port}/  (Ctrl-C ends)', flush=True)
    try:
      pages.serve_forever()
    except KeyboardInterrupt:
      print()
  return 0


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
  """Serves files and logs no requests."""

  def log_message(self, format: str, *args: object) -> None:
    pass


if __name__ == '__main__':
  tool.run_console(main)
