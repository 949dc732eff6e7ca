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


def commands() -> list[tuple[str, str]]:
  """Returns the command lines of `sh` blocks, continuation lines joined.

  Returns:
    [(page, command)], in the order of the pages.
  """
  return [
    (block.page, line.strip())
    for block in blocks('sh')
    for line in block.text.replace('\\\n', ' ').splitlines()
    if line.strip() and not line.strip().startswith('#')
  ]


def pax_words() -> dict[str, str]:
  """Returns {words after the program of a command that runs pax: its page}.

  Each is listed once: a command that several pages show runs for all of them.
  """
  pages_of_words: dict[str, str] = {}
  for page, line in commands():
    if RUN in line or line.startswith(PAX):
      words = ' '.join(line.split(RUN, 1)[-1].removeprefix(PAX).split())
      pages_of_words.setdefault(words, page)
  return pages_of_words
