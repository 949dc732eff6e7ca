# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Code written for paxml finds the modules of pax."""

from __future__ import annotations

import importlib
import sys

import pytest

from pax import compat


@pytest.fixture(autouse=True)
def _clean():
  finders, modules = list(sys.meta_path), set(sys.modules)
  yield
  sys.meta_path[:] = finders
  for name in set(sys.modules) - modules:
    if name.split('.')[0] == 'paxml':
      del sys.modules[name]


def test_modules_are_the_same_objects():
  compat.install()
  old = importlib.import_module('paxml.base_metrics')
  new = importlib.import_module('pax.base_metrics')
  assert old is new
  assert new.__name__ == new.__spec__.name == 'pax.base_metrics'


def test_packages_and_attributes():
  compat.install()
  tasks_lib = importlib.import_module('paxml.tasks_lib')
  single_task = importlib.import_module('paxml.tasks_lib.single_task')
  assert tasks_lib.SingleTask is single_task.SingleTask
  assert importlib.import_module('paxml').tasks_lib is tasks_lib


def test_what_pax_lacks_paxml_lacks():
  compat.install()
  with pytest.raises(ModuleNotFoundError, match='paxml.no_such_module'):
    importlib.import_module('paxml.no_such_module')


def test_install_twice_adds_one_finder():
  before = len(sys.meta_path)
  compat.install()
  compat.install()
  assert len(sys.meta_path) == before + 1


def test_new_name():
  assert compat.new_name('paxml.tasks.lm') == 'pax.tasks.lm'
  assert compat.new_name('paxml') == 'pax'
  assert compat.new_name('paxmlike.tasks') == 'paxmlike.tasks'
