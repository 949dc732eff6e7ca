# SPDX-License-Identifier: Apache-2.0
"""A browser without windows: what pages contain after scripts ran, and show.

References:
  https://chromedevtools.github.io/devtools-protocol/
"""

# bazel: data=@chromium//:files
from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jaxtyping import UInt8
from PIL import Image

# Root of the sources, or of Bazel's runfiles.
_ROOT = pathlib.Path(__file__).absolute().parents[2]
_INSTALLED = ('chromium-headless-shell', 'chromium', 'google-chrome')
_FLAGS = (
  '--headless',
  # It reads commands from descriptor 3 and writes events to 4.
  '--remote-debugging-pipe',
  '--disable-dev-shm-usage',
  '--disable-gpu',
  '--hide-scrollbars',
  # Bazel's sandbox, and those of containers, allow no inner one.
  '--no-sandbox',
  '--no-zygote',
  # It contacts no other machine.
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-quic',
  '--disable-sync',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
  '--no-first-run',
)
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
# A promise that the document gets what a selector finds.
_WAIT = """
new Promise((resolve, reject) => {{
  const selector = {selector}, end = Date.now() + {milliseconds};
  (function look() {{
    if (document.querySelector(selector)) resolve();
    else if (Date.now() > end) reject(new Error('nothing is ' + selector));
    else setTimeout(look, 50);
  }})();
}})"""


class Page:
  """A page of a browser that is connected by pipes."""

  def __init__(self, commands: io.FileIO, events: io.BufferedReader):
    self._commands, self._events = commands, events
    self._number = 0
    self._session = ''
    # Exceptions of scripts, and what the browser refused to load.
    self.errors: list[str] = []
    target = self.call('Target.createTarget', url='about:blank')
    attached = self.call('Target.attachToTarget', **target, flatten=True)
    self._session = attached['sessionId']
    for domain in ('Log', 'Page', 'Runtime'):
      self.call(f'{domain}.enable')

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """Runs a command of the protocol; returns its result."""
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    self._commands.write(json.dumps(message).encode() + b'\0')
    while (answer := self._receive()).get('id') != self._number:
      pass
    assert 'error' not in answer, f'{method}: {answer["error"]}'
    return answer['result']

  def open(self, url: str, selector: str = 'body') -> None:
    """Loads a page and waits until a script has made what a selector finds."""
    self.errors.clear()
    assert 'errorText' not in self.call('Page.navigate', url=url), url
    while self._receive().get('method') != 'Page.loadEventFired':
      pass
    wait = _WAIT.format(selector=json.dumps(selector), milliseconds=60_000)
    self.evaluate(wait)

  def evaluate(self, expression: str) -> Any:
    """Returns the value of an expression in the page."""
    result = self.call(
      'Runtime.evaluate',
      expression=expression,
      awaitPromise=True,
      returnByValue=True,
    )
    assert 'exceptionDetails' not in result, result['exceptionDetails']
    return result['result'].get('value')

  @property
  def text(self) -> str:
    """What a person can read."""
    return self.evaluate('document.body.innerText')

  def screenshot(self, path: pathlib.Path) -> UInt8[np.ndarray, 'H W 3']:
    """Writes a picture of the window as PNG; returns its pixels."""
    shot = self.call('Page.captureScreenshot', format='png')
    path.write_bytes(base64.b64decode(shot['data']))
    with Image.open(path) as picture:
      return np.asarray(picture.convert('RGB'))

  def _receive(self) -> dict[str, Any]:
    """Returns the next answer or event; keeps errors."""
    data = bytearray()
    while (byte := self._events.read(1)) != b'\0':
      assert byte, 'the browser has exited'
      data += byte
    message = json.loads(data)
    if message.get('method') == 'Runtime.exceptionThrown':
      self.errors.append(str(message['params']['exceptionDetails']))
    if message.get('method') == 'Log.entryAdded':
      self.errors.append(str(message['params']['entry']))
    return message


@contextlib.contextmanager
def start(
  folder: pathlib.Path, width: int = 1200, height: int = 900
) -> Iterator[Page]:
  """Runs the browser that Bazel fetched, or an installed one.

  Args:
    folder: an empty folder for its files.
    width: of the window.
    height: of the window.
  """
  program = _program()
  to_browser, commands = os.pipe()
  events, from_browser = os.pipe()
  redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
  window = [f'--user-data-dir={folder}/user', f'--window-size={width},{height}']
  with (
    open(commands, 'wb', buffering=0) as writer,
    open(events, 'rb') as reader,
    (folder / 'log').open('wb') as log,
    subprocess.Popen(
      ['bash', '-c', redirect, 'bash', program, *_FLAGS, *window],
      env=os.environ | _environment(program, folder),
      pass_fds=(to_browser, from_browser),
      stderr=log,
    ) as process,
  ):
    os.close(to_browser)
    os.close(from_browser)
    try:
      yield Page(writer, reader)
    finally:
      process.kill()


def _program() -> pathlib.Path:
  # With MODULE.bazel, the repository's name has a prefix.
  fetched = _ROOT.parent.glob('*chromium/package/bin/chromium')
  installed = map(shutil.which, _INSTALLED)
  for path in (*fetched, *filter(None, installed)):
    return pathlib.Path(path)
  pytest.skip('no browser: install chromium; Bazel fetches one by npm')


def _environment(program: pathlib.Path, folder: pathlib.Path) -> dict[str, str]:
  """Returns where the program finds libraries and fonts beside it, if any."""
  fonts = program.parent / 'fonts'
  if not fonts.is_dir():
    return {}
  listing = folder / 'fonts.conf'
  listing.write_text(_FONTS.format(fonts=fonts, folder=folder))
  return {
    'FONTCONFIG_FILE': str(listing),
    'HOME': str(folder),
    'LD_LIBRARY_PATH': str(program.parent / 'lib'),
  }
