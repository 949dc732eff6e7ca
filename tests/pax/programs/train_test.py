# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The order of the loop, seen from its collaborators."""

from __future__ import annotations

import types
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints
from pax.programs import train as train_program
from pax.programs.run import Outcome, Run
from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap


class Counting(base_input.BaseInput):
  """Batch i holds i."""

  num_batches: int = 0

  def __post_init__(self):
    super().__post_init__()
    self._count = 0

  def get_next(self):
    if self.num_batches and self._count >= self.num_batches:
      raise StopIteration
    self._count += 1
    return NestedMap(x=np.float32([self._count]))

  def _get_state_internal(self):
    return {'count': self._count}

  def _set_state_internal(self, state):
    self._count = state['count']


class Recorder(checkpoints.NoopCheckpointer):
  """Remembers what the loop asked to be saved."""

  def __init__(self):
    self.saves = []

  def save(self, step, state, input_state=None, *, force=False):
    self.saves.append((step, float(state), input_state['count'], force))
    return force


class FakeWriter:
  def __init__(self):
    self.steps = []

  def write(self, step, scalars, split='train'):
    scalars = scalars() if callable(scalars) else scalars
    self.steps.append((split, step, float(scalars['loss'])))

  def flush(self):
    pass

  def close(self):
    pass


class FakeProgress:
  def __init__(self):
    self.shown = []

  def update(self, step, metrics, *, rate=None, mfu=None):
    self.shown.append((step, metrics['loss']))

  def print(self, text):
    pass

  def close(self):
    pass


class StopAt:
  def __init__(self, step=None):
    self._step = step

  def requested(self, step):
    return step == self._step


def _step(state, batch, key):
  """The state sums the batches; the loss is the batch."""
  output = types.SimpleNamespace(
    loss=batch.x[0],
    weighted_scalars={},
    summary_tensors={},
  )
  return state + batch.x[0], output


def _run(tmp_path, *, num_steps=4, stop_at=None, first=0, num_batches=0):
  settings = types.SimpleNamespace(
    num_train_steps=num_steps,
    random_seed=1,
    summary_interval_steps=2,
    eval_interval_steps=None,
    compute_steps_per_sec_interval_steps=10,
    profiler_capture_step=None,
    profiler_num_steps=2,
    profiler_max_num_hosts=None,
    max_inflight_steps=2,
  )
  inp = Counting.config(
    batch_size=1, is_training=True, num_batches=num_batches
  ).Instantiate()
  inp.set_state({'count': first})
  partitioner = types.SimpleNamespace(
    task=types.SimpleNamespace(train=settings),
    put_batch=lambda b: NestedMap(x=jnp.asarray(b.x)),
    input_spec=NestedMap(x=np.zeros([1], np.float32)),
    var_weight_hparams={'params': {}},
    devices=jax.devices()[:1],
  )
  return Run(
    job_log_dir=str(tmp_path),
    partitioner=partitioner,
    train_step=_step,
    state=jnp.float32(0),
    step=first,
    train_input=inp,
    evals=(),
    checkpointer=Recorder(),
    writer=FakeWriter(),
    progress=FakeProgress(),
    interrupts=StopAt(stop_at),
    describing=futures.Future(),
  )


def test_saves_the_state_that_enters_each_step_with_its_input(tmp_path):
  run = _run(tmp_path)
  assert train_program.train(run) is Outcome.DONE
  sums = [0, 1, 3, 6, 10]
  assert run.checkpointer.saves == [
    *((step, sums[step], step, False) for step in range(5)),
    (4, 10, 4, True),
  ]


def test_reports_the_loss_of_a_step_under_its_number(tmp_path):
  run = _run(tmp_path, num_steps=5)
  train_program.train(run)
  assert run.writer.steps == [('train', 0, 1), ('train', 2, 3), ('train', 4, 5)]
  assert run.progress.shown == [(1, 1.0), (5, 5.0)]


def test_stops_before_the_step_and_saves(tmp_path):
  run = _run(tmp_path, stop_at=3)
  assert train_program.train(run) is Outcome.PREEMPTED
  assert run.checkpointer.saves[-1] == (3, 6, 3, True)


def test_goes_on_from_where_it_stands(tmp_path):
  run = _run(tmp_path, first=2)
  assert train_program.train(run) is Outcome.DONE
  assert run.checkpointer.saves[-1] == (4, 3 + 4, 4, True)


def test_nothing_is_left_to_do(tmp_path):
  run = _run(tmp_path, first=4)
  assert train_program.train(run) is Outcome.DONE
  assert run.writer.steps == []


def test_ends_where_the_data_end(tmp_path):
  run = _run(tmp_path, num_batches=2)
  assert train_program.train(run) is Outcome.OUT_OF_DATA
  assert run.checkpointer.saves[-1] == (2, 3, 2, True)


def test_an_error_in_the_data_reaches_the_caller(tmp_path):
  run = _run(tmp_path)

  def broken():
    raise OSError('gone')

  run.train_input.get_next = broken
  with pytest.raises(OSError, match='gone'):
    train_program.train(run)
