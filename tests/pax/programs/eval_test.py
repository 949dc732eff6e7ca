# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Evaluation: weighted means, which batches, and what inputs derive."""

from __future__ import annotations

import types

import numpy as np
import pytest

from pax.programs import eval as eval_program
from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap


class Rows(base_input.BaseInput):
  """Batches of one number: 1, 2, ..."""

  num_batches: int = 4

  def __post_init__(self):
    super().__post_init__()
    self.count = 0

  def get_next(self):
    if self.count >= self.num_batches:
      raise StopIteration
    self.count += 1
    return NestedMap(x=np.float32([self.count]))

  def reset(self):
    self.count = 0

  def derived_metrics(self, metrics):
    return {'twice': 2 * metrics['x']} if metrics else {}


class FakePartitioner:
  """Its step reports x with weight x, and a loss of 10 x."""

  def __init__(self):
    learner = types.SimpleNamespace(loss_name='x')
    self.task = types.SimpleNamespace(
      evaluate=types.SimpleNamespace(random_seed=1),
      train=types.SimpleNamespace(learner=learner),
    )
    self.compiled = 0

  def put_batch(self, batch):
    return batch

  def eval_step(self, batch):
    self.compiled += 1

    def step(state, batch, key):
      x = batch.x[0]
      return types.SimpleNamespace(
        loss=10 * x, weighted_scalars=NestedMap(x=(x, x))
      )

    return step


def _rows(**fields):
  return Rows.config(batch_size=1, **fields).Instantiate()


def test_weighted_means_over_an_epoch_every_time():
  partitioner = FakePartitioner()
  program = eval_program.EvalProgram(partitioner, _rows(reset_for_eval=True))
  mean = (1 + 4 + 9 + 16) / (1 + 2 + 3 + 4)
  for _ in range(2):
    metrics = program.run(state=None)
    assert metrics == pytest.approx(
      {'x': mean, 'loss': 10 * mean, 'twice': 2 * mean}
    )
  assert partitioner.compiled == 1


@pytest.mark.parametrize(
  ('fields', 'seen'),
  [
    ({'eval_loop_num_batches': 2}, [2, 4, 4]),
    ({'eval_loop_num_batches': 3}, [3, 4, 4]),
    ({'eval_loop_num_batches': None}, [4, 4, 4]),
    ({'eval_loop_num_batches': 1, 'reset_for_eval': True}, [0, 0, 0]),
  ],
)
def test_batches_of_each_evaluation(fields, seen):
  inp = _rows(**fields)
  program = eval_program.EvalProgram(FakePartitioner(), inp)
  counts = []
  for _ in range(3):
    program.run(state=None)
    counts.append(inp.count)
  assert counts == seen


def test_no_batch_gives_no_metric():
  inp = _rows(num_batches=0, reset_for_eval=True)
  assert eval_program.EvalProgram(FakePartitioner(), inp).run(None) == {}
