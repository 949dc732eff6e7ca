# SPDX-License-Identifier: Apache-2.0
# bazel: data=//docs:all_files,//docs:site
# bazel: deps=//pax/tools:docs_lib
"""The built site has its pages, and its links lead to pages and headings.

Without Bazel it reads docs/_build, which tools/docs/build_site.py writes; if
there is none, the tests are skipped.
"""

from __future__ import annotations

import html.parser
import os
import pathlib
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest

from pax.runner import command_line
from pax.tools import docs
from tools.docs import build_site

_ROOT = pathlib.Path(__file__).absolute().parents[2]


class _Page(html.parser.HTMLParser):
  """The title, text, links and anchors of a page."""

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.path = path
    self.anchors: set[str] = set()
    self.links: list[str] = []
    self.images: list[str] = []
    self.texts: list[str] = []
    self.feed(path.read_text(encoding='utf-8'))

  def handle_starttag(self, tag, attrs):
    values = dict(attrs)
    self.anchors |= {values[k] for k in ('id', 'name') if values.get(k)}
    if tag == 'a' and values.get('href'):
      self.links.append(values['href'])
    if tag == 'img':
      self.images.append(values['src'])

  def handle_data(self, data):
    self.texts.append(data)

  @property
  def text(self) -> str:
    return ' '.join(' '.join(self.texts).split())


@pytest.fixture(scope='module')
def site():
  for folder in (_ROOT / 'docs/site', _ROOT / 'docs/_build'):
    if (folder / 'index.html').exists():
      return folder
  pytest.skip('no site: python tools/docs/build_site.py docs/_build')


@pytest.fixture(scope='module')
def pages(site):
  paths = [p for p in site.rglob('*.html') if '_static' not in p.parts]
  return {path.relative_to(site).as_posix(): _Page(path) for path in paths}


def test_every_page_is_in_the_site(pages):
  sources = [*(_ROOT / 'docs').glob('*.md')]
  names = {f'{path.stem}.html' for path in sources}
  names |= {'changelog.html', 'contributing.html', 'search.html'}
  names |= {'api/index.html', 'api/pax.learners.html', 'py-modindex.html'}
  assert names <= set(pages)


def test_links_lead_to_pages_and_headings(pages, site):
  broken = []
  for name, page in pages.items():
    for link in (*page.links, *page.images):
      url = urllib.parse.urlsplit(link)
      if url.scheme or url.netloc:
        continue
      path = page.path.parent / urllib.parse.unquote(url.path)
      # Bazel's files are links to files of several folders: no resolve().
      target = os.path.normpath(path if url.path else page.path)
      key = os.path.relpath(target, site)
      if key not in pages:
        if key.startswith('..') or not os.path.isfile(target):
          broken.append(f'{name}: {link}')
      elif url.fragment and url.fragment not in pages[key].anchors:
        broken.append(f'{name}: {link}')
  assert not broken


def test_the_front_page_leads_to_the_first_steps(pages):
  front = pages['index.html']
  assert 'Pax' in front.text
  assert {'quickstart.html', 'concepts.html', 'api/index.html'} <= {
    link.partition('#')[0] for link in front.links
  }


def test_the_reference_has_docstrings(pages):
  text = pages['api/pax.learners.html'].text
  assert 'Clips gradients, runs the optimizer' in text
  assert (
    'pax.learners.learner.Learner' in pages['api/pax.learners.html'].anchors
  )


def test_the_search_finds_words_of_pages(site):
  index = (site / 'searchindex.js').read_text(encoding='utf-8')
  assert 'partitioning' in index and 'learner' in index


def test_pax_docs_serves_the_site(site):
  folder = docs.find_site(str(site))
  with docs.server(folder, port=0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'http://127.0.0.1:{server.server_port}/quickstart.html'
    with urllib.request.urlopen(address) as response:
      assert b'<title>' in response.read()
    server.shutdown()


def test_a_packed_site_has_the_pages(tmp_path):
  site = tmp_path / 'site'
  (site / 'api').mkdir(parents=True)
  for name in ('index.html', 'api/pax.html', 'theme.css.map'):
    (site / name).write_text(name)
  for name in ('one.zip', 'two.zip'):
    build_site.pack(site, tmp_path / name)
    os.utime(site / 'index.html', (10**9, 10**9))
  packed = (tmp_path / 'one.zip').read_bytes()
  assert packed == (tmp_path / 'two.zip').read_bytes()
  with docs.server(tmp_path / 'one.zip', port=0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'http://127.0.0.1:{server.server_port}'
    for url, text in (
      ('/', 'index.html'),
      ('/api/pax.html?q=1#a', 'api/pax.html'),
    ):
      with urllib.request.urlopen(address + url) as response:
        assert response.headers['Content-Type'] == 'text/html'
        assert response.read().decode() == text
    for url in ('/theme.css.map', '/api', '/../one.zip'):
      with pytest.raises(urllib.error.HTTPError, match='404') as raised:
        urllib.request.urlopen(address + url)
      raised.value.close()
    server.shutdown()


def test_a_folder_without_a_site_is_an_error(tmp_path):
  with pytest.raises(command_line.UsageError, match='has no index.html'):
    docs.find_site(str(tmp_path))
