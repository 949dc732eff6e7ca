# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: data=//:all_files
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
"""The Python blocks of each page run, and the labels of commands exist."""

from __future__ import annotations

import re
import sys
import types

import pytest

from tests.docs import pages
from tests.testing import nightly

# Layers have tests of their own by day.
_NIGHTLY_PAGES = ('layers.md',)
# Of blocks that run: here, in commands_test.py (`yaml` as its files), and in
# tests that need TensorFlow (`py`).
_LANGUAGES = {'python', 'sh', 'yaml', 'py'}


def test_blocks_are_in_languages_that_tests_run():
  fences = [
    language
    for page in pages.PAGES
    for language, _ in pages.FENCE.findall(page.read_text())
  ]
  assert set(fences) == _LANGUAGES


@pytest.mark.parametrize(
  'page',
  nightly.marked(
    sorted({b.page for b in pages.blocks('python')}), _NIGHTLY_PAGES
  ),
)
def test_python_blocks_run(page, monkeypatch):
  # Dataclasses and the registry look for the module of a class.
  module = types.ModuleType(f'docs_{page.removesuffix(".md")}')
  monkeypatch.setitem(sys.modules, module.__name__, module)
  texts = [b.text for b in pages.blocks('python') if b.page == page]
  assert texts
  for text in texts:
    exec(compile(text, page, 'exec'), vars(module))


def labels() -> list[str]:
  return sorted(
    {
      label
      for _, line in pages.commands()
      if line.startswith('./bazelw')
      for label in re.findall(r'//[\w/.:-]+', line)
      if '...' not in label
    }
  )


@pytest.mark.parametrize('label', labels())
def test_labels_exist(label):
  package, _, name = label[2:].partition(':')
  build = (pages.ROOT / package / 'BUILD').read_text()
  name = (name or package.rpartition('/')[2]).removesuffix('.par')
  assert f'name = "{name}"' in build


def test_the_readme_begins_with_the_two_commands():
  assert [line for _, line in pages.commands()[:2]] == [
    './bazelw run //pax:main -- --exp=tasks.lm.params.quickstart.TinyLm '
    '--job_log_dir=/tmp/pax/tiny',
    './bazelw test //...',
  ]
