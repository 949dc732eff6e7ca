# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//:all_files
"""Links between pages lead to headings, and every page is in the index."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.docs import pages

_SOURCES = [
  *pages.PAGES,
  pages.ROOT / 'CONTRIBUTING.md',
  pages.ROOT / 'CHANGELOG.md',
]
_FENCED = re.compile(r'^ *```.*?^ *```', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'\]\(([^)\s]+)\)')
_TOCTREE = re.compile(r'^```\{toctree\}\n(.*?)^```', re.MULTILINE | re.DOTALL)
# Made when the site is built.
_GENERATED = {'api/index', 'changelog', 'contributing'}


def _anchors(path: pathlib.Path) -> set[str]:
  """Returns the anchors of the headings of a page, as GitHub makes them."""
  text = _FENCED.sub('', path.read_text(encoding='utf-8'))
  headings = re.findall(r'^#+ +(.*)$', text, re.MULTILINE)
  kept = (re.sub(r'[^\w\- ]', '', h.lower()) for h in headings)
  return {heading.strip().replace(' ', '-') for heading in kept}


@pytest.mark.parametrize('page', _SOURCES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
  text = _FENCED.sub('', page.read_text(encoding='utf-8'))
  broken = []
  for link in _LINK.findall(text):
    path, _, anchor = link.partition('#')
    if '://' in link or path.removesuffix('.md') in _GENERATED:
      continue
    target = page.parent / path if path else page
    if not target.exists():
      broken.append(link)
    elif anchor and anchor not in _anchors(target):
      broken.append(link)
  assert not broken


def test_every_page_is_in_the_index_once():
  text = (pages.ROOT / 'docs/index.md').read_text(encoding='utf-8')
  entries = [
    line
    for block in _TOCTREE.findall(text)
    for line in block.splitlines()
    if line and not line.startswith(':')
  ]
  assert len(set(entries)) == len(entries)
  folder = pages.ROOT / 'docs'
  names = {
    str(path.relative_to(folder).with_suffix(''))
    for pattern in ('*.md', 'notebooks/*.ipynb')
    for path in folder.glob(pattern)
  }
  assert set(entries) == names - {'index'} | _GENERATED
