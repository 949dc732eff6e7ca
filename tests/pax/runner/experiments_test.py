# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The experiment that is meant, or the one of those that it consists of."""

from __future__ import annotations

import pytest

from pax import automl, base_experiment, experiment_registry
from pax.runner import experiments, overrides


class Alone(base_experiment.BaseExperiment):
  """Has constants of its own."""

  RATE = 1.0
  SIZE = 1

  def datasets(self):
    return []

  def task(self):
    raise NotImplementedError


@experiment_registry.register(allow_overwrite=True)
class Several(Alone):
  """Consists of itself, of a variant, and of one that knows nothing of it."""

  RATE = automl.oneof([0.1, 0.2])
  DEPTH = 2

  def sub_experiments(self):
    cls = type(self)
    larger = type(cls.__name__, (cls,), {'SIZE': 8})
    return {'small': cls, 'large': larger, 'alone': Alone}


def _find(part, *settings):
  name = f'{Several.__module__}.Several'
  return experiments.find(name, overrides.parse(settings), sub_experiment=part)


@pytest.mark.parametrize(
  ('part', 'size'), [('small', 1), ('large', 8), ('alone', 1)]
)
def test_parts_have_the_constants_of_the_whole(part, size):
  found = _find(part, 'RATE=0.2', 'DEPTH=3')
  assert (found.RATE, found.SIZE) == (0.2, size)
  assert getattr(found, 'DEPTH', None) == (None if part == 'alone' else 3)


def test_what_it_does_not_consist_of():
  with pytest.raises(ValueError, match='none of small, large, alone'):
    _find('huge', 'RATE=0.1')


def test_a_search_point_must_be_chosen():
  with pytest.raises(ValueError, match='RATE of Several are search points'):
    _find('large')


@experiment_registry.register(allow_overwrite=True)
class WithoutData(base_experiment.BaseExperiment):
  """Lacks datasets()."""

  def task(self):
    raise NotImplementedError


def test_an_experiment_without_a_method():
  name = f'{WithoutData.__module__}.WithoutData'
  with pytest.raises(
    ValueError, match=r'^WithoutData must define datasets\(\), got none;'
  ):
    experiments.find(name, [])
