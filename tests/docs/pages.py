# SPDX-License-Identifier: Apache-2.0
"""README.md and the pages of docs/, and the code and commands in them."""

from __future__ import annotations

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
FENCE = re.compile(r'^```(\w+)\n(.*?)^```', re.MULTILINE | re.DOTALL)
RUN = './bazelw run //pax:main -- '
PAX = 'pax '


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of a page."""

  page: str
  language: str
  text: str


def blocks(language: str) -> list[Block]:
  """Returns the blocks of one language, in the order of the pages."""
  return [
    Block(page.name, match, text)
    for page in PAGES
    for match, text in FENCE.findall(page.read_text())
    if match == language
  ]


def commands() -> list[str]:
  """Returns each command line of the `sh` blocks, continuation lines joined."""
  texts = (block.text.replace('\\\n', ' ') for block in blocks('sh'))
  lines = (line.strip() for text in texts for line in text.splitlines())
  return [line for line in lines if line and not line.startswith('#')]


def pax_words() -> list[str]:
  """Returns the words after the program of the commands that run pax.

  Each is listed once: a command that several pages show runs for all of them.
  """
  lines = dict.fromkeys(
    ' '.join(line.split(RUN, 1)[-1].removeprefix(PAX).split())
    for line in commands()
    if RUN in line or line.startswith(PAX)
  )
  return list(lines)
