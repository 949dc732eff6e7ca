# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Indexed examples: each once per epoch, on any host, from any batch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs.rows import indexed
from praxis import py_utils


class Numbers(indexed.IndexedInput):
  """Its examples are their numbers and places."""

  total: int = 10

  @property
  def num_examples(self) -> int:
    return self.total

  def read(self, indices, positions):
    return py_utils.NestedMap(index=indices, position=positions)


def make(**kwargs) -> Numbers:
  settings = {'batch_size': 4, 'is_training': True, **kwargs}
  return Numbers.config(**settings).Instantiate()


def take(source: Numbers, count: int) -> np.ndarray:
  return np.stack([source.get_next().index for _ in range(count)])


def drain(source: Numbers) -> list:
  batches = []
  while source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def test_an_epoch_has_every_example_once_and_the_next_in_another_order():
  indices = take(make(), 5).ravel()
  assert sorted(indices[:10]) == sorted(indices[10:]) == list(range(10))
  assert list(indices[:10]) != list(indices[10:]) != list(range(10))
  assert make().num_batches == 3


def test_seeds_give_different_orders():
  orders = {tuple(take(make(input_random_seed=s), 3).ravel()) for s in range(9)}
  assert len(orders) == 9


def test_evaluation_goes_through_once_and_pads():
  source = make(is_training=False)
  for _ in range(2):
    batches = drain(source)
    assert [list(b.index) for b in batches] == [
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [8, 9, 0, 0],
    ]
    weights = np.concatenate([b.eval_sample_weights for b in batches])
    np.testing.assert_array_equal(weights, [1] * 10 + [0] * 2)
    source.reset()


@pytest.mark.parametrize('is_training', [True, False])
def test_hosts_share_each_batch(is_training):
  alone = make(is_training=is_training, batch_size=8)
  pair = [
    make(is_training=is_training, num_infeed_hosts=2, infeed_host_index=i)
    for i in range(2)
  ]
  for _ in range(2):
    whole = alone.get_next()
    parts = [source.get_next() for source in pair]
    for name in whole:
      found = np.concatenate([part[name] for part in parts])
      np.testing.assert_array_equal(found, whole[name])
  if not is_training:
    # The last host had no example left, and ends with the others.
    assert not parts[1].eval_sample_weights.any()
    for source in pair:
      with pytest.raises(StopIteration):
        source.get_next()


def test_resumes_anywhere_on_any_number_of_hosts():
  source = make()
  take(source, 3)
  state = json.loads(json.dumps(source.get_state()))
  wanted = take(source, 4).ravel()
  other = make(batch_size=8)
  other.set_state(state)
  np.testing.assert_array_equal(take(other, 2).ravel(), wanted)


def test_places_are_told():
  source = make()
  source.get_next()
  np.testing.assert_array_equal(source.get_next().position, [4, 5, 6, 7])


def test_no_examples():
  with pytest.raises(ValueError, match="data of 'none' must have at least 1"):
    make(name='none', total=0).get_next()
  assert make(total=0, is_training=False).peek_padded() is None
