# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Evaluation: weighted means, which batches, files, and what inputs derive."""

from __future__ import annotations

import types

import numpy as np
import pytest

from pax import base_metrics, io_utils, programs
from pax.programs import metric_accumulator
from praxis import base_input, base_layer, py_utils
from tests.pax.programs import host_partitioner

NestedMap = py_utils.NestedMap
HIDDEN = 'hidden' + base_layer.get_summary_type_suffix(
  base_layer.SummaryType.SCALAR
)


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
    return NestedMap(
      x=np.float32([self.count]), text=np.array([f'row {self.count}'])
    )

  def reset(self):
    self.count = 0

  def derived_metrics(self, metrics):
    return {'twice': 2 * metrics['x']} if metrics else {}


TASK = types.SimpleNamespace(
  evaluate=types.SimpleNamespace(random_seed=1),
  decode=types.SimpleNamespace(metrics_prefix='Metrics/'),
  # As of a task with `loss_aggregator`.
  train=types.SimpleNamespace(learner=types.SimpleNamespace(loss_name=None)),
  loss_aggregator_inst=base_metrics.LossAggregator(loss_key='x'),
)


class Partitioner(host_partitioner.HostPartitioner):
  """Its step reports x with weight x, and a loss of 10 x."""

  def put_batch(self, batch):
    assert set(batch) == {'x'}
    return batch

  def eval_step_for(self, batch):
    def step(state, batch, key):
      x = batch.x[0]
      return types.SimpleNamespace(
        loss=10 * x,
        weighted_scalars=NestedMap(x=(x, x)),
        summary_tensors={HIDDEN: x},
        per_example_out=NestedMap(y=-batch.x),
      )

    return step


def _program(tmp_path, cls=programs.SingleTaskEvalProgram, **fields):
  program = cls(Rows.config(name='rows', batch_size=1, **fields))
  program.setup(TASK, Partitioner(), tmp_path, None)
  return program


def test_weighted_means_over_an_epoch_every_time(tmp_path):
  program = _program(tmp_path, reset_for_eval=True)
  mean = (1 + 4 + 9 + 16) / (1 + 2 + 3 + 4)
  for _ in range(2):
    out = program.run(None, 7)
    assert out.eval_metrics == pytest.approx({'x': mean, 'twice': 2 * mean})
    assert out.scalars == pytest.approx(
      {
        'loss': 10 * mean,
        'Metrics/x': mean,
        'Metrics/x-weight': 10,
        'Metrics/twice': 2 * mean,
        # Of layers the batches count alike.
        'hidden_scalar': 2.5,
      }
    )
    assert out.num_eval_steps == 4


def test_what_each_example_gave_is_written_with_its_text(tmp_path):
  _program(tmp_path, reset_for_eval=True).run(None, 7)
  folder = tmp_path / 'eval_out' / 'rows'
  lines = (folder / 'eval_out_7_shard_0.jsonl').read_text().splitlines()
  assert lines[1] == '{"text": "row 2", "y": -2.0}'
  pairs = io_utils.load_outputs(tmp_path, 'rows', 'eval')
  assert [float(value.y) for _, value in pairs] == [-1, -2, -3, -4]


@pytest.mark.parametrize(
  ('fields', 'seen'),
  [
    ({'eval_loop_num_batches': 2}, [2, 4]),
    ({'eval_loop_num_batches': 3}, [3]),
    ({'eval_loop_num_batches': None}, [4]),
    ({'eval_loop_num_batches': 1, 'reset_for_eval': True}, [0, 0, 0]),
  ],
)
def test_batches_of_each_evaluation(tmp_path, fields, seen):
  program = _program(tmp_path, **fields)
  counts = []
  for _ in seen:
    program.run(None, 0)
    counts.append(program.eval_input.count)
  assert counts == seen
  if not program.eval_input.reset_for_eval:
    with pytest.raises(ValueError, match="'rows' ended after"):
      program.run(None, 0)


def test_no_batch_gives_no_metric(tmp_path):
  out = _program(tmp_path, num_batches=0, reset_for_eval=True).run(None, 0)
  assert out.eval_metrics == {} and out.scalars == {}
  assert not (tmp_path / 'eval_out').exists()


def test_a_subclass_changes_the_step_and_when_it_runs(tmp_path):
  class Doubled(programs.SingleTaskEvalProgram):
    def should_run(self, state, step):
      return step > 0

    def eval_step(self, state, prng_key, inputs, static_args):
      assert static_args.unpadded_global_batch_size == 1
      out = super().eval_step(state, prng_key, inputs, static_args)
      out.weighted_scalars.x = (2 * out.weighted_scalars.x[0], 1)
      return out

  program = _program(tmp_path, Doubled, reset_for_eval=True)
  assert not program.should_run(None, 0) and program.should_run(None, 1)
  assert program.run(None, 1).eval_metrics['x'] == pytest.approx(5.0)


def test_before_setup_there_is_no_input():
  with pytest.raises(ValueError, match='no input before setup'):
    _ = programs.SingleTaskEvalProgram(Rows.config(batch_size=1)).eval_input


@pytest.mark.parametrize(
  ('keys', 'expected'),
  [(['a', 'b'], (3 * 1 + 1 * 5) / 4 + 7), (['a', 'dropped'], (8 + 12) / 2)],
)
def test_a_sum_of_losses_weights_the_batches_of_each_by_its_weight(
  keys, expected
):
  accumulator = metric_accumulator.MetricAccumulator(
    base_metrics.MultiLossAggregator(loss_keys=keys).summed_names
  )
  for a, weight in ((1.0, 3.0), (5.0, 1.0)):
    output = types.SimpleNamespace(
      loss=a + 7,
      weighted_scalars={'a': (a, weight), 'b': (7.0, 2.0)},
      summary_tensors={},
      per_example_out=NestedMap(),
    )
    accumulator.add(output, NestedMap())
  accumulator.finish()
  assert accumulator.loss == expected


def test_another_loss_of_several_scalars_weights_batches_alike():
  class Largest(base_metrics.MultiLossAggregator):
    def aggregate(self, batch_metrics):
      return max(batch_metrics[key][0] for key in self.loss_keys)

  assert Largest(loss_keys=['a', 'b']).summed_names == []
