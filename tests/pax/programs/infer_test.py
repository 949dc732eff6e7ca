# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Inference writes whole outputs, and goes on where it was stopped."""

from __future__ import annotations

import io
import json
import types

import jax
import numpy as np
import pytest

from pax import io_utils, summaries
from pax.files import tf_records
from pax.programs import infer
from pax.programs.jobs import Outcome
from pax.programs.stopping import preemption
from praxis import py_utils


class Rows:
  """Three batches of one row each, whose values are 10 times the batch."""

  reset_for_eval = True
  eval_loop_num_batches = None

  def __init__(self, name):
    self.name = name
    self.count = 0

  def get_next_padded(self):
    self.count += 1
    if self.count > 3:
      raise StopIteration
    return py_utils.NestedMap(
      x=np.full((1,), 10.0 * self.count, np.float32),
      text=np.array([f'row {self.count}']),
      unused=np.array(['']),
    )


class Partitioner:
  """Doubles."""

  task = types.SimpleNamespace(
    infer=types.SimpleNamespace(random_seed=1),
    model=types.SimpleNamespace(name='double'),
    infer_settings=types.SimpleNamespace(
      output_num_shards=1, output_format=io_utils.OutputFormatType.TFRECORD
    ),
  )

  def put_batch(self, batch):
    assert set(batch) - {'eval_sample_weights'} == {'x'}
    return batch

  def infer_step_for(self, batch):
    return lambda state, batch, key: py_utils.NestedMap(y=2 * batch.x)


RUNNER = types.SimpleNamespace(
  output_schema=py_utils.NestedMap(y=jax.ShapeDtypeStruct((), np.float32)),
  serialize_outputs=lambda rows: [
    tf_records.example({'y': y}) for y in np.asarray(rows.y)
  ],
)


class StopsAt:
  """Stops a job before the check of this number."""

  def __init__(self, number):
    self._left = number

  def raise_if_requested(self, count=0):
    self._left -= 1
    if not self._left:
      raise preemption.PreemptedError

  def read(self, read):
    return read()


def _run(
  directory, stops_at=0, names=('one', 'two'), rows=Rows, fingerprint=''
):
  inputs = list(map(rows, names))
  job = infer.InferJob(
    job_log_dir=str(directory),
    partitioner=Partitioner(),
    runner=RUNNER,
    state=types.SimpleNamespace(step=7),
    checkpoint='somewhere',
    inputs=inputs,
    fingerprint=fingerprint,
    progress=summaries.Progress(1, io.StringIO()),
    preemption=StopsAt(stops_at),
  )
  return job.run(), [inp.count for inp in inputs]


def _values(directory, name):
  file = directory / 'output' / name / 'output.tfrecord-00000-of-00001'
  with file.open('rb') as f:
    return [np.frombuffer(r[-4:], '<f4')[0] for r in tf_records.read(f)]


def test_a_stopped_job_goes_on_with_the_next_input(tmp_path):
  # Four checks of the first input; the second is left in its second batch.
  assert _run(tmp_path, stops_at=6) == (Outcome.PREEMPTED, [4, 1])
  assert _values(tmp_path, 'one') == [20, 40, 60]
  assert not list((tmp_path / 'output' / 'two').iterdir())
  assert _run(tmp_path) == (Outcome.DONE, [0, 4])
  assert _values(tmp_path, 'two') == [20, 40, 60]
  metadata = tmp_path / 'output' / 'two' / 'metadata.json'
  assert json.loads(metadata.read_text())['restore_checkpoint_step'] == 7
  # Starting a finished job repeats it.
  assert _run(tmp_path) == (Outcome.DONE, [4, 4])


def test_outputs_of_another_checkpoint_are_replaced(tmp_path):
  """Both are of step 7, and the job of the first was stopped."""
  assert _run(tmp_path, stops_at=6)[0] is Outcome.PREEMPTED
  assert _run(tmp_path, fingerprint='b') == (Outcome.DONE, [4, 4])


def test_strings_of_the_schema_are_written(tmp_path, monkeypatch):
  text = types.SimpleNamespace(shape=(), dtype=np.dtype(np.str_))
  schema = {**RUNNER.output_schema, 'text': text}
  monkeypatch.setattr(RUNNER, 'output_schema', schema)
  monkeypatch.setattr(
    RUNNER,
    'serialize_outputs',
    lambda rows: [tf_records.example(dict(rows, y=rows.y[0]))],
  )
  assert _run(tmp_path)[0] is Outcome.DONE
  file = tmp_path / 'output' / 'one' / 'output.tfrecord-00000-of-00001'
  with file.open('rb') as f:
    found = [tf_records.parse_example(r) for r in tf_records.read(f)]
  assert [row['text'] for row in found] == [[b'row 1'], [b'row 2'], [b'row 3']]
  assert [row['y'] for row in found] == [20, 40, 60]


class PaddedRows(Rows):
  """Rows with padding after the first, and a last batch of padding only."""

  def get_next_padded(self):
    batch = super().get_next_padded()
    is_last = self.count == 3
    batch = batch.Transform(lambda x: np.repeat(x, 2))
    batch.eval_sample_weights = np.array([0.0 if is_last else 1.0, 0.0])
    return batch


def test_rows_of_padding_are_not_written(tmp_path):
  _run(tmp_path, names=('one',), rows=PaddedRows)
  assert _values(tmp_path, 'one') == [20, 40]


def test_a_failure_leaves_no_half_of_a_file(tmp_path, monkeypatch):
  def fail(rows):
    raise OSError('the disk is full')

  monkeypatch.setattr(RUNNER, 'serialize_outputs', fail)
  with pytest.raises(OSError, match='the disk is full'):
    _run(tmp_path)
  assert not list((tmp_path / 'output' / 'one').iterdir())


def test_files_of_another_number_do_not_stay(tmp_path, monkeypatch):
  settings = Partitioner.task.infer_settings
  for count in (3, 1):
    monkeypatch.setattr(settings, 'output_num_shards', count)
    _run(tmp_path, names=('one',))
  files = sorted(p.name for p in (tmp_path / 'output' / 'one').iterdir())
  assert files == [
    'features.json',
    'metadata.json',
    'output.tfrecord-00000-of-00001',
  ]


def test_inputs_of_one_name_would_replace_each_other(tmp_path):
  with pytest.raises(ValueError, match="unique, got 'one' for 2 inputs"):
    _run(tmp_path, names=('one', 'one'))
  assert not (tmp_path / 'output').exists()
