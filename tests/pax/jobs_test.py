# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Jobs as functions pass their arguments as options of the command."""

from __future__ import annotations

import pathlib

import pytest

from pax import jobs
from pax.programs.jobs import JobCallbacks
from pax.runner import runner
from pax.runner.options import RunOptions

_EXPERIMENT = object()


@pytest.fixture
def runs(monkeypatch):
  """The arguments of each run; runs return exit code 3."""
  calls = []
  monkeypatch.setattr(runner, 'run', lambda *args: calls.append(args) or 3)
  return calls


def test_train_and_evaluate(runs):
  code = jobs.train_and_evaluate(
    _EXPERIMENT, pathlib.Path('/job'), run_decode=True, init_from='/other'
  )
  options = RunOptions(
    mode='train',
    job_log_dir='/job',
    eval_on_test=None,
    decode_during_train=True,
    init_from='/other',
  )
  assert code == 3 and runs == [(options, _EXPERIMENT, JobCallbacks())]


def test_train_and_evaluate_by_positions_of_paxml(runs):
  jobs.train_and_evaluate(
    _EXPERIMENT,
    '/job',
    False,
    True,
    None,
    len,
    override_num_train_steps=7,
    enable_async_checkpointing=False,
    async_timeout_secs=9,
    train_first_result_callback_fn=print,
    set=('NUM_LAYERS=2',),
  )
  options = RunOptions(
    job_log_dir='/job',
    eval_on_test=True,
    jax_fully_async_checkpoint=False,
    async_timeout_secs=9,
    set=('NUM_LAYERS=2', 'task.train.num_train_steps=7'),
  )
  callbacks = JobCallbacks(early_stopping_fn=len, first_result_fn=print)
  assert runs == [(options, _EXPERIMENT, callbacks)]


@pytest.mark.parametrize(
  'arguments',
  [
    {'maybe_use_persistence_checkpointing': True},
    {'enable_auto_sharding': True},
  ],
)
def test_unsupported_arguments(runs, arguments):
  with pytest.raises(ValueError, match='is not supported: '):
    jobs.train_and_evaluate(_EXPERIMENT, '/job', **arguments)
  assert not runs


@pytest.mark.parametrize(
  ('job', 'mode'), [(jobs.evaluate, 'eval'), (jobs.infer_and_write, 'infer')]
)
def test_evaluate_and_infer(runs, job, mode):
  assert job(_EXPERIMENT, '/job', hang_timeout_secs=9) == 3
  options = RunOptions(mode=mode, job_log_dir='/job', hang_timeout_secs=9)
  assert runs == [(options, _EXPERIMENT, JobCallbacks())]


def test_evaluate_by_positions_of_paxml(runs):
  jobs.evaluate(_EXPERIMENT, '/job', False, '/other', 4, len)
  options = RunOptions(
    mode='eval',
    job_log_dir='/job',
    restore_checkpoint_dir='/other',
    restore_checkpoint_step=(4,),
  )
  assert runs == [(options, _EXPERIMENT, JobCallbacks(early_stopping_fn=len))]


def test_decode_by_positions_of_paxml(runs):
  jobs.decode(_EXPERIMENT, '/job', False, None, None, False, True, None)
  options = RunOptions(
    mode='decode_once', job_log_dir='/job', eval_during_decode=True
  )
  assert runs == [(options, _EXPERIMENT, JobCallbacks())]


def test_decode(runs):
  jobs.decode(_EXPERIMENT, '/job')
  jobs.decode(
    _EXPERIMENT,
    '/job',
    restore_checkpoint_dir=pathlib.Path('/other'),
    restore_checkpoint_step=7,
    continuous_decode=False,
  )
  assert [options for options, *_ in runs] == [
    RunOptions(mode='decode', job_log_dir='/job'),
    RunOptions(
      mode='decode_once',
      job_log_dir='/job',
      restore_checkpoint_dir='/other',
      restore_checkpoint_step=(7,),
    ),
  ]
