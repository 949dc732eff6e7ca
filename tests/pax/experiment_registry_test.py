# SPDX-License-Identifier: Apache-2.0
"""Experiments are found by any unique part of their names."""

# bazel: size=small
# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

from pax import experiment_registry as registry


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
  monkeypatch.setattr(registry, '_entries', {})


def _class(name, module):
  return type(name, (), {'__module__': module})


@pytest.fixture
def two():
  one = _class('Small', 'pax.tasks.lm.params.cloud')
  other = _class('Small', 'pax.tasks.vision.params.images')
  registry.register(one)
  registry.register(other, tags=['fast'])
  return one, other


@pytest.mark.parametrize(
  'name',
  [
    'pax.tasks.lm.params.cloud.Small',
    'paxml.tasks.lm.params.cloud.Small',
    'tasks.lm.params.cloud.Small',
    'lm.params.cloud.Small',
    'lm.cloud.Small',
    'cloud.Small',
  ],
)
def test_every_suffix_names_it(two, name):
  assert registry.get(name) is two[0]
  assert registry.get_experiment(name) is two[0]


def test_ambiguous_names_list_the_matches(two):
  with pytest.raises(ValueError, match=r'cloud\.Small, .*images\.Small'):
    registry.get('Small')


def test_part_of_a_word_is_no_suffix(two):
  assert registry.get('oud.Small') is None


def test_unknown_is_none_or_an_error_with_near_names(two, monkeypatch):
  monkeypatch.setattr(registry, '_experiment_files', dict)
  assert registry.get('cloud.Smal') is None
  with pytest.raises(ValueError, match="'cloud.Smal'.*Did you mean tasks"):
    registry.get_experiment('cloud.Smal')
  for near in ('clod.Small', 'SMALLL', 'mall', 'params.cloud.Smal'):
    with pytest.raises(ValueError, match='Did you mean tasks.*cloud.Small'):
      registry.get_experiment(near)
  with pytest.raises(ValueError, match='`pax list_experiments` lists all'):
    registry.get_experiment('qqqqqq')


def test_twice_is_an_error_unless_allowed(two):
  again = _class('Small', 'pax.tasks.lm.params.cloud')
  registry._entries['pax.tasks.lm.params.cloud.Small'] = registry._Entry(
    experiment=two[0], tags=(), module_spec='spec'
  )
  module = type(sys)('pax.tasks.lm.params.cloud')
  module.__spec__ = 'spec'
  sys.modules[module.__name__] = module
  try:
    with pytest.raises(ValueError, match='registered already'):
      registry.register(again)
    registry.register(again, allow_overwrite=True)
    assert registry.get('cloud.Small') is again
  finally:
    del sys.modules[module.__name__]


def test_names_are_those_of_the_class_and_not_of_the_function_around_it():
  def make():
    @registry.register
    class OnlyInAFunction:
      pass

    return OnlyInAFunction

  first = make()
  assert registry.canonical_name(first) == f'{__name__}.OnlyInAFunction'
  with pytest.raises(ValueError, match='registered already'):
    make()


def test_tags_and_all(two):
  assert registry.get_registry_tags('images.Small') == ('fast',)
  assert registry.get_all() == {
    'pax.tasks.lm.params.cloud.Small': two[0],
    'pax.tasks.vision.params.images.Small': two[1],
  }


def test_modules_are_imported_on_demand_and_reloaded(tmp_path, monkeypatch):
  (tmp_path / 'my_exps.py').write_text(
    textwrap.dedent("""
      from pax import experiment_registry

      @experiment_registry.register
      class Mine:
        pass
    """)
  )
  monkeypatch.syspath_prepend(tmp_path)
  found = registry.get('my_exps.Mine')
  assert found.__module__ == 'my_exps'
  importlib.reload(sys.modules['my_exps'])
  assert registry.get('my_exps.Mine') is not found
  del sys.modules['my_exps']


def test_a_class_without_the_decorator_is_named(tmp_path, monkeypatch):
  (tmp_path / 'plain_exps.py').write_text('class Mine: pass\n')
  monkeypatch.syspath_prepend(tmp_path)
  assert registry.get('plain_exps.Mine') is None
  message = "'plain_exps.Mine', as that class is not registered; write @exp"
  with pytest.raises(ValueError, match=message):
    registry.get_experiment('plain_exps.Mine')
  with pytest.raises(ValueError, match=r"'plain_exps.Other'\. "):
    registry.get_experiment('plain_exps.Other')
  del sys.modules['plain_exps']


def test_a_missing_module_within_is_not_hidden(tmp_path, monkeypatch):
  (tmp_path / 'broken_exps.py').write_text('import no_such_dependency\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ModuleNotFoundError, match='no_such_dependency'):
    registry.get('broken_exps.Mine')


def test_a_binary_without_some_experiments_names_the_others(monkeypatch):
  monkeypatch.setattr(
    registry, '_PACKAGES', {'pax.left_out': '*.py', 'pax.no.such': '*.py'}
  )
  with pytest.raises(ValueError, match='no experiment is called'):
    registry.get_experiment('elsewhere.Unheard')


def test_nothing_is_printed(capsys):
  registry.register(_class('Quiet', 'pax.tasks.lm.params.cloud'))
  assert capsys.readouterr() == ('', '')
