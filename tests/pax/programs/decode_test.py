# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Decoding: metrics, files, randomness, and where the data end."""

from __future__ import annotations

import types

import jax
import numpy as np
import pytest

from pax import base_metrics, io_utils, programs
from pax.programs import decode
from praxis import base_input
from praxis.pytypes import NestedMap
from tests.pax.programs import host_partitioner


class Rows(base_input.BaseInput):
  """Batches of one number: 1, 2, 3, each with a text."""

  def __post_init__(self):
    super().__post_init__()
    self.count = 0

  def get_next(self):
    if self.count >= 3:
      raise StopIteration
    self.count += 1
    return NestedMap(
      x=np.float32([self.count]), text=np.array([f'row {self.count}'])
    )

  def reset(self):
    self.count = 0


class Model:
  """Says what it was given, in two batches' metrics."""

  def process_decode_out(self, input_obj, decode_out):
    y = float(decode_out.y[0])
    result = {'y': y, 'text': str(decode_out.text[0])}
    half = base_metrics.WeightedScalarCluMetric.create(y / 2, y)
    return (
      NestedMap(twice=(2 * y, 1.0)),
      [(f'key {y}', result)],
      NestedMap(half=half),
    )


class Partitioner(host_partitioner.HostPartitioner):
  """Its step gives back the batch, and keeps the key."""

  def __init__(self):
    self.keys = []

  def decode_step_for(self, batch):
    def step(state, batch, key):
      self.keys.append(int(jax.random.key_data(key)[-1]))
      return types.SimpleNamespace(
        weighted_scalars=NestedMap(x=(batch.x[0], batch.x[0])),
        per_example_out=NestedMap(y=batch.x),
        summary_tensors={},
      )

    return step


DecodeProgram = programs.SingleTaskDecodeProgram


def _program(
  tmp_path,
  partitioner=None,
  fold=False,
  output_pickle=True,
  cls=DecodeProgram,
  model=None,
  metrics=None,
  **fields,
):
  task = types.SimpleNamespace(
    decode=types.SimpleNamespace(
      prng_key_fold_with_batch_index=fold,
      profiler_num_steps=0,
      profiler_min_duration_sec=0.0,
      profiler_capture_step=1,
      profiler_max_num_hosts=None,
      metrics_prefix='Metrics/',
    ),
    model=model or Model(),
    metrics_aggregator=(
      metrics or base_metrics.MeanMetrics.config()
    ).Instantiate(),
  )
  program = cls(Rows.config(name='rows', batch_size=1, **fields))
  program.setup(
    task,
    partitioner or Partitioner(),
    tmp_path,
    jax.random.key(7),
    output_pickle=output_pickle,
  )
  return program


def test_metrics_and_outputs_of_a_whole_epoch(tmp_path):
  out = _program(tmp_path, reset_for_eval=True).run(None, 5)
  mean = (1 + 4 + 9) / (1 + 2 + 3)
  assert out.decode_metrics == pytest.approx({'x': mean})
  assert out.processed_decode_metrics == pytest.approx(
    {'twice': 4.0, 'half': mean / 2}
  )
  assert out.num_decode_steps == 3
  assert out.scalars == pytest.approx(
    {
      'decode_metrics/x': mean,
      'decode_metrics/x-weight': 6.0,
      'process_decode_metrics/twice': 4.0,
      'process_decode_metrics/twice-weight': 3.0,
      'Metrics/half': mean / 2,
    }
  )
  pairs = io_utils.load_outputs(tmp_path, 'rows', 'decoder')
  assert pairs[1] == ('key 2.0', {'y': 2.0, 'text': 'row 2'})


def test_metrics_that_the_first_batch_lacks(tmp_path):
  class Skips(Model):
    """Has no metrics of the first row."""

    def process_decode_out(self, input_obj, decode_out):
      scalars, *rest = super().process_decode_out(input_obj, decode_out)
      return scalars if decode_out.y[0] > 1 else NestedMap(), *rest

  program = _program(tmp_path, model=Skips(), reset_for_eval=True)
  out = program.run(None, 5)
  assert out.processed_decode_metrics['twice'] == pytest.approx((4 + 6) / 2)


class Reports(Partitioner):
  """Its layers report the row, and a sound of one sample."""

  def decode_step_for(self, batch):
    summaries = {'row_scalar': batch.x[0], 'sound_audio': batch.x[None, None]}
    return lambda *_: types.SimpleNamespace(
      weighted_scalars=NestedMap(),
      per_example_out=NestedMap(y=batch.x),
      summary_tensors=summaries,
    )


def test_summaries_of_layers(tmp_path):
  model = Model()
  model.sample_rate = 8000
  program = _program(tmp_path, Reports(), model=model, reset_for_eval=True)
  scalars = program.run(None, 5).scalars
  assert scalars['row_scalar'] == pytest.approx((1 + 2 + 3) / 3)
  sound = scalars['sound_audio']
  assert sound.sample_rate == 8000
  np.testing.assert_array_equal(np.ravel(sound.value), [1.0, 2.0, 3.0])


class Counts(Partitioner):
  """Its metrics are counts of two classes."""

  def decode_step_for(self, batch):
    counts = np.float32([batch.x[0], 2.0])
    return lambda *_: types.SimpleNamespace(
      weighted_scalars=NestedMap(codes=(counts, np.float32(1.0))),
      per_example_out=NestedMap(y=batch.x),
      summary_tensors={},
    )


def test_counts_of_classes(tmp_path):
  metrics = base_metrics.HistogramMetrics.config(histogram_key='codes')
  out = _program(tmp_path, Counts(), metrics=metrics, reset_for_eval=True).run(
    None, 5
  )
  # 1 + 2 + 3 and 3 * 2: two classes alike.
  assert out.decode_metrics == pytest.approx(
    {'codes_pplx': 2.0, 'codes_entropy': np.log(2), 'codes_coverage': 1.0}
  )
  with pytest.raises(
    ValueError, match=r"'codes' .* number, got the shape \(2,"
  ):
    _program(tmp_path, Counts(), reset_for_eval=True).run(None, 5)


def test_all_processes_have_the_metrics_of_the_first(tmp_path, monkeypatch):
  """Their early stopping functions have to agree."""
  sent = []
  accumulator = decode.metric_accumulator

  def run(index, broadcast):
    monkeypatch.setattr(jax, 'process_index', lambda: index)
    monkeypatch.setattr(
      accumulator, 'broadcast_json_from_first_process', broadcast
    )
    program = _program(tmp_path, reset_for_eval=True)
    return program.run(None, 5)

  first = run(0, lambda value: sent.append(value) or value)
  second = run(1, lambda value: sent[0])
  assert set(first.processed_decode_metrics) == {'twice', 'half'}
  assert second.processed_decode_metrics == first.processed_decode_metrics
  assert second.scalars == first.scalars


def test_no_pickle(tmp_path):
  _program(tmp_path, output_pickle=False, reset_for_eval=True).run(None, 5)
  names = [p.name for p in (tmp_path / 'decoder_out' / 'rows').iterdir()]
  assert names == ['decoder_out_5_shard_0.jsonl']


@pytest.mark.parametrize(
  ('fields', 'seen'),
  [
    ({'eval_loop_num_batches': 2}, [2, 1, 2]),
    ({'eval_loop_num_batches': None}, [3, 3, 3]),
    ({'eval_loop_num_batches': 1, 'reset_for_eval': True}, [3, 3, 3]),
  ],
)
def test_batches_of_each_pass(tmp_path, fields, seen):
  program = _program(tmp_path, **fields)
  counts = [program.run(None, step).num_decode_steps for step in range(3)]
  assert counts == seen


def test_randomness_of_batches(tmp_path):
  alike, apart = Partitioner(), Partitioner()
  _program(tmp_path, alike, reset_for_eval=True).run(None, 0)
  _program(tmp_path, apart, fold=True, reset_for_eval=True).run(None, 0)
  assert len(set(alike.keys)) == 1 and len(set(apart.keys)) == 3


def test_a_subclass_changes_the_step(tmp_path):
  class Negative(DecodeProgram):
    def decode_step(self, state, prng_key, inputs, static_args):
      out = super().decode_step(state, prng_key, inputs, static_args)
      out.per_example_out.y = -out.per_example_out.y
      return out

  program = _program(tmp_path, cls=Negative, reset_for_eval=True)
  out = program.run(None, 0)
  assert out.processed_decode_metrics['twice'] == pytest.approx(-4.0)
