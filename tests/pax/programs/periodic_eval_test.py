# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""When training evaluates, decodes and stops."""

from __future__ import annotations

import contextlib
import types

import pytest

from pax import summaries, train_states
from pax.programs import early_stopping, periodic_eval
from pax.programs.program import (
  DecodeProgramOutput,
  EvalProgramOutput,
  TrainProgramOutput,
)
from pax.programs.stopping.preemption import PreemptedError
from praxis.pytypes import NestedMap

STATE = train_states.TrainState(
  step=0,
  mdl_vars={'params': {'w': 1.0}},
  opt_states=[(NestedMap(ema={'params': {'w': 2.0}}),)],
)


class EvalRunner:
  """Remembers what was run when, on which variable."""

  def __init__(self):
    self.ran = []
    self.decodes = ('one',)
    self.evals = ('one',)
    # The step at which a signal comes between the evaluation and the decoding.
    self.signal_at = None

  def evaluate(self, state, step):
    self.ran.append(('eval', step, state.mdl_vars['params']['w']))
    return {'held_out': EvalProgramOutput(state, {'x': 1.0}, scalars={'x': 1})}

  def decode(self, state, step):
    if step == self.signal_at:
      raise PreemptedError
    self.ran.append(('decode', step, state.mdl_vars['params']['w']))
    return {'prompts': DecodeProgramOutput(state, {'y': 2.0})}


class Reporter:
  """Knows the number of parameters."""

  def pause(self):
    return contextlib.nullcontext()

  def show_metrics(self, metrics):
    pass

  def job_scalars(self):
    return {'num_params': 5, 'train_steps_per_sec': 1.0}


class TrainProgram:
  """Evaluates the next batch, if the task wants that."""

  def __init__(self, ran):
    self._ran = ran

  def run_eval_train(self, state):
    self._ran.append('eval_train')


def _periodic_eval(stops=None, job_log_dir='/job', **changes):
  settings = {
    'num_train_steps': 10,
    'eval_interval_steps': 4,
    'eval_use_ema_states': False,
    'decode_interval_steps': 3,
    'decode_start_after_n_steps': 5,
    'decode_use_ema_states': True,
  }
  runner = EvalRunner()
  job = types.SimpleNamespace(
    job_log_dir=job_log_dir,
    task=types.SimpleNamespace(
      train=types.SimpleNamespace(**settings | changes),
      early_stopping_fn=stops,
    ),
    eval_runner=runner,
    early_stopping=early_stopping.create_early_stopping(stops, '/job'),
    train_program=TrainProgram([]),
    writer=summaries.NoopWriter(),
    goodput=summaries.goodput.Recorder(None),
  )
  return periodic_eval.PeriodicEval(job, Reporter()), runner


def _train(periodic, last=10):
  for step in range(1, last + 1):
    done = TrainProgramOutput(
      STATE, loss=0.0, weighted_scalars={'x': (3.0, 1)}, new_train_step=step
    )
    if periodic.run_due(step, done):
      return step
  return None


def test_intervals_the_last_step_and_averages():
  periodic, runner = _periodic_eval()
  assert _train(periodic) is None
  periodic.run_final(10, STATE)
  assert runner.ran == [
    ('eval', 4, 1.0),
    ('decode', 6, 2.0),
    ('eval', 8, 1.0),
    ('decode', 9, 2.0),
    ('eval', 10, 1.0),
    ('decode', 10, 2.0),
  ]


def test_none_is_never():
  periodic, runner = _periodic_eval(
    eval_interval_steps=None, decode_interval_steps=None
  )
  _train(periodic)
  periodic.run_final(10, STATE)
  assert runner.ran == []


def test_data_that_end_early_are_evaluated_and_decoded_once_more():
  periodic, runner = _periodic_eval(decode_interval_steps=4)
  _train(periodic, last=6)
  periodic.run_final(6, STATE)
  assert [ran[:2] for ran in runner.ran] == [
    ('eval', 4),
    ('eval', 6),
    ('decode', 6),
  ]


def test_the_next_start_repeats_what_a_signal_interrupted(tmp_path):
  """And asks whether to stop, but only once."""
  asked = []

  def stops(metrics, mode, step, *others):
    asked.append((step, 'eval_test_held_out/metrics/x' in metrics))
    return step == 8

  intervals = {'decode_interval_steps': 8}
  periodic, runner = _periodic_eval(stops, str(tmp_path), **intervals)
  runner.signal_at = 8
  with pytest.raises(PreemptedError):
    _train(periodic)
  asked.clear()
  for step, is_repeated in ((5, False), (8, True), (8, False)):
    periodic, runner = _periodic_eval(stops, str(tmp_path), **intervals)
    assert periodic.run_interrupted(step, STATE) == is_repeated
    ran = [('eval', 8, 1.0), ('decode', 8, 2.0)] if is_repeated else []
    assert runner.ran == ran
  assert asked == [(8, True)]


def test_the_verdict():
  asked = {}

  def stops(metrics, mode, step, is_last, path):
    asked[step] = (sorted(metrics), mode.has_eval, mode.has_decode, is_last)
    return step == 9

  periodic, _ = _periodic_eval(stops)
  assert _train(periodic) == 9
  always = ['num_params', 'train_steps_per_sec']
  assert asked[1] == (always, False, False, False)
  names = ['eval_test_held_out/metrics/x', *always[:1], 'train/x', *always[1:]]
  assert asked[4] == (names, True, False, False)
  # No evaluation comes after step 8 but the last.
  assert asked[8][1:] == (True, False, True)
  assert asked[9][1:] == (False, True, True)
  assert 'decode_test_prompts/y' in asked[9][0]


def test_training_metrics_of_every_step(monkeypatch):
  name = 'PAXML_EARLY_STOP_ALWAYS_AGGREGATE_TRAIN_METRICS'
  monkeypatch.setenv(name, 'true')
  calls = []
  periodic, _ = _periodic_eval(lambda metrics, *others: calls.append(metrics))
  _train(periodic, last=3)
  assert len(calls) == 3 and all('train/x' in metrics for metrics in calls)


def test_averages_that_are_not_there():
  periodic, _ = _periodic_eval(eval_use_ema_states=True)
  bare = TrainProgramOutput(
    STATE.replace(opt_states=[()]),
    loss=0.0,
    weighted_scalars={},
    new_train_step=4,
  )
  with pytest.raises(ValueError, match='no averages'):
    periodic.run_due(4, bare)
