# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Conversion of metric values to numbers, and values that are not numbers."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pax import base_metrics
from paxml import metric_utils
from praxis.pytypes import NestedMap

Mean = base_metrics.WeightedScalarCluMetric


@dataclasses.dataclass
class Scalar:
  """As clu and SeqIO have it."""

  value: float


@pytest.mark.parametrize(
  ('value', 'number'),
  [
    (3, 3.0),
    (np.float32(0.5), 0.5),
    ((jnp.float32(2.0), jnp.float32(5.0)), 2.0),
    ([(1.0, 1.0), (4.0, 2.0)], 3.0),
    (Scalar(7.0), 7.0),
  ],
)
def test_numbers(value, number):
  assert metric_utils.is_float_convertible(value)
  assert metric_utils.as_float(value) == pytest.approx(number)


@pytest.mark.parametrize(
  'value', ['1', None, [], [1.0], (1.0, 2.0, 3.0), Scalar('x'), np.ones(2)]
)
def test_what_is_no_number(value):
  assert not metric_utils.is_float_convertible(value)
  with pytest.raises(ValueError, match='a metric must be a number'):
    metric_utils.as_float(value)


def test_dicts():
  found = metric_utils.as_float_dict({'a': 1, 'b': 'text', 'c': (2.0, 3.0)})
  assert found == {'a': 1.0, 'c': 2.0}
  with pytest.raises(ValueError, match='a metric must be'):
    metric_utils.as_float_dict({'b': 'text'}, True)
  target = {'x': 0.0}
  assert metric_utils.update_float_dict(target, found, 'train') is target
  assert metric_utils.update_float_dict(target, {'x': 9.0}) == {
    'x': 9.0,
    'train/a': 1.0,
    'train/c': 2.0,
  }


def test_metrics_that_merge():
  first = {'a': Mean.create(jnp.array([1.0, 2.0]), jnp.ones(2))}
  second = {'a': Mean.create(jnp.array([6.0]), jnp.ones(1))}
  merged = metric_utils.merge_clu_metrics(
    metric_utils.merge_clu_metrics({}, first), second
  )
  values = metric_utils.compute_metric_values(merged)
  assert metric_utils.as_float_dict(values) == {'a': 3.0}
  with pytest.raises(ValueError, match=r"\['a'\], got \['b'\]"):
    metric_utils.merge_clu_metrics(first, {'b': second['a']})


class Several:
  """A metric of several values."""

  def __init__(self, values):
    self._values = values

  def compute_value(self):
    return self._values


def test_metrics_of_several_values():
  found = metric_utils.compute_metric_values(
    {'m': Several({'f1': 1, 'by_class': [2, 3]}), 'n': Several([4, 5])}
  )
  assert found == {
    'm/f1': 1,
    'm/by_class_0': 2,
    'm/by_class_1': 3,
    'n/n_0': 4,
    'n/n_1': 5,
  }


def test_pairs_or_metrics():
  extract = metric_utils.extract_weighted_scalars_and_clu_metrics
  pairs = NestedMap(loss=(jnp.float32(1.0), jnp.float32(2.0)))
  metrics = {'a': Mean.empty()}
  assert extract({'loss': (1.0, 2.0)}) == ({'loss': (1.0, 2.0)}, {})
  assert extract(metrics) == ({}, metrics)
  assert extract(pairs) == (pairs, {})
  for wrong in ({}, metrics | {'loss': (1.0, 2.0)}, {'x': 'text'}):
    with pytest.raises(TypeError, match='metrics must be'):
      extract(wrong)
