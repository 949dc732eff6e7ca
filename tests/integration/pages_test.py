# SPDX-License-Identifier: Apache-2.0
"""What a person sees of the pages of Pax: a browser runs and draws them.

Bazel keeps the pictures in test.outputs, beside the log of the test.
"""

# bazel: data=//docs:site
# bazel: deps=//tests/integration:experiments
from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pax.aot import analysis, target
from pax.aot.report import html_report
from pax.plotting import curves, html_page, png
from pax.tools import abstract_experiment, docs
from tests.testing import browser as browser_lib

_ROOT = pathlib.Path(__file__).absolute().parents[2]
_SITES = (_ROOT / 'docs/site', _ROOT / 'docs/_build')


@pytest.fixture(scope='module')
def browser(tmp_path_factory) -> Iterator[browser_lib.Page]:
  with browser_lib.start(tmp_path_factory.mktemp('browser')) as page:
    yield page


@pytest.fixture
def pictures(tmp_path) -> pathlib.Path:
  return pathlib.Path(os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR', tmp_path))


@contextlib.contextmanager
def _served(folder: pathlib.Path) -> Iterator[str]:
  """Serves a folder as `pax docs` does; yields the address."""
  with docs.server(folder, port=0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()


def _share(picture: np.ndarray, color: str) -> float:
  """Returns the share of the pixels that have nearly a color, as '#ff0000'."""
  wanted = np.frombuffer(bytes.fromhex(color[1:]), np.uint8).astype(int)
  return float((abs(picture.astype(int) - wanted).max(-1) <= 8).mean())


@pytest.fixture(scope='module')
def site() -> Iterator[str]:
  for folder in _SITES:
    if (folder / 'index.html').exists():
      with _served(folder) as address:
        yield address
      return
  pytest.skip('no site: python tools/docs/build_site.py docs/_build')


def test_the_front_page_of_the_documentation(browser, site, pictures):
  browser.open(f'{site}/index.html')
  for words in ('Pax configures and trains large models', 'Quickstart'):
    assert words in browser.text
  picture = browser.screenshot(pictures / 'docs.png')
  assert picture.shape == (900, 1200, 3)
  # The style sheet of the theme puts the contents beside the text.
  edges = browser.evaluate(
    "['.sidebar-drawer', 'article'].map("
    's => document.querySelector(s).getBoundingClientRect().left)'
  )
  assert edges[0] == 0 and edges[1] > 200
  assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 100
  assert not browser.errors


def test_the_search_of_the_documentation_finds_a_page(browser, site):
  browser.open(f'{site}/search.html?q=sharding+cookbook', 'ul.search li a')
  links = browser.evaluate(
    "[...document.querySelectorAll('ul.search a')].map(a => a.pathname)"
  )
  assert '/sharding_cookbook.html' in links


def test_the_page_of_plots_draws_curves(browser, tmp_path, pictures):
  jobs = []
  for name, first in (('one', 9), ('two', 7)):
    points = {'train': [(step, first - step / 20) for step in range(100)]}
    panels = {'Loss': points, 'Gradient norm': points}
    jobs.append(curves.Job(name=name, panels=panels, goodput=None))
  file = tmp_path / 'curves.html'
  file.write_text(html_page.text(jobs, smoothing=0.5))
  browser.open(file.as_uri(), 'svg path')
  # Per panel and job: the values, faint, and the smoothed curve.
  paths = browser.evaluate(
    "[...document.querySelectorAll('svg path')].map("
    "p => [p.getAttribute('stroke'), p.getAttribute('d').split('L').length])"
  )
  assert sorted(paths) == sorted([c, 100] for c in png.COLORS[:2] * 4)
  assert {'Loss', 'Gradient', 'one', 'two'} <= set(browser.text.split())
  picture = browser.screenshot(pictures / 'plots.png')
  assert all(_share(picture, color) > 5e-4 for color in png.COLORS[:2])
  # A click on its name hides a job; the point before the name keeps its color.
  browser.evaluate("document.querySelectorAll('.key')[1].click()")
  picture = browser.screenshot(pictures / 'plots_of_one.png')
  assert _share(picture, png.COLORS[0]) > 5e-4 > _share(picture, png.COLORS[1])
  assert not browser.errors


def test_the_report_of_an_ahead_of_time_analysis(browser, tmp_path, pictures):
  options = abstract_experiment.ExperimentOptions(
    exp='tests.integration.experiments.TinySpmd',
    set=('ICI_MESH_SHAPE=[1,2,2]',),
  )
  made = target.create_target(options, 'cpu:4')
  report = analysis.analyze(made, analysis.TRACED).report
  full = dataclasses.replace(
    report, fits=False, memory=dataclasses.replace(report.memory, capacity=1.0)
  )
  file = tmp_path / 'report.html'
  file.write_text(html_report.render_html(full))
  browser.open(file.as_uri())
  for words in ('TinySpmd', 'DOES NOT FIT', 'Memory per device'):
    assert words in browser.text
  picture = browser.screenshot(pictures / 'aot.png')
  # The headline is red; the bar has the colors of its parts.
  assert _share(picture, '#c0392b') > 1e-4
  assert _share(picture, html_report.COLORS['parameters']) > 1e-3
  assert not browser.errors
