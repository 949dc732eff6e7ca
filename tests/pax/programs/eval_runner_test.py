# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The runner runs the programs that are due and writes their metrics."""

from __future__ import annotations

import math
import types

import pytest

from pax import io_utils, summaries
from pax.programs import eval_runner
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput

EVAL = io_utils.EvaluationMode.EVAL


class Program:
  """Returns the state as its loss."""

  def __init__(self, name, out, first=0, num_batches=None):
    self.input = types.SimpleNamespace(
      name=name, reset_for_eval=False, eval_loop_num_batches=num_batches
    )
    self._out, self._first = out, first
    self.ended = False

  def should_run(self, state, step):
    return step >= self._first

  def run(self, state, step):
    for i in range(2):
      self.before_batch(i)
    return self._out(state)

  def headline_metrics(self, output):
    return {}

  def shutdown(self):
    self.ended = True


def _evaluated(state):
  return EvalProgramOutput(
    state,
    eval_metrics={'bits_per_byte': 2.0, 'other': 3.0},
    scalars={'loss': state},
  )


def _decoded(state):
  return DecodeProgramOutput(state, num_decode_steps=4, scalars={'x': 1})


class Writer(summaries.NoopWriter):
  def __init__(self):
    self.written, self.flushed = [], 0

  def write(self, step, scalars, split='train'):
    self.written.append((step, split, dict(scalars)))

  def flush(self):
    self.flushed = len(self.written)


class Progress:
  def __init__(self):
    self.lines, self.bars = [], []

  def print(self, text):
    self.lines.append(text)

  def batches(self, label, done, total=None):
    self.bars.append((label, done, total))


def _eval_runner(evals=(), decodes=()):
  before = []
  runner = eval_runner.EvalRunner(
    evals=evals,
    decodes=decodes,
    writer=Writer(),
    progress=Progress(),
    before_batch=before.append,
  )
  return runner, before


def test_evaluation():
  programs = [
    Program('a', _evaluated, num_batches=5),
    Program('late', _evaluated, first=9),
    Program('done', _evaluated),
  ]
  runner, before = _eval_runner(evals=programs)
  found = runner.evaluate(
    1.5, 7, lambda mode, name: (mode, name) == (EVAL, 'done')
  )
  assert list(found) == ['a'] and before == [0, 1]
  assert runner.writer.written == [(7, 'eval_test_a', {'loss': 1.5})]
  assert runner.progress.bars == [('eval a', 0, 5), ('eval a', 1, 5)]
  assert runner.progress.lines == [
    'step 7  a loss 1.5000  a bits_per_byte 2.0000',
    'step 7  eval done: written before',
  ]
  runner.shutdown()
  assert all(program.ended for program in programs)


def test_a_loss_that_is_not_finite_is_printed():
  runner, _ = _eval_runner(evals=[Program('a', _evaluated)])
  output = runner.evaluate(math.nan, 7)['a']
  assert runner.progress.lines == ['step 7  a loss nan  a bits_per_byte 2.0000']
  # A training job replaces the loss of an earlier evaluation by it.
  assert math.isnan(eval_runner.headline_metrics('a', output)['a loss'])


def test_no_batch_is_no_line():
  runner, _ = _eval_runner(evals=[Program('a', EvalProgramOutput)])
  runner.evaluate(None, 7)
  assert runner.progress.lines == []


def test_metrics_are_in_files_before_the_next_input():
  """A job that is killed there does not compute them again."""
  runner, _ = _eval_runner(
    evals=[Program('a', _evaluated), Program('b', _evaluated)],
    decodes=[Program('p', _decoded), Program('q', _decoded)],
  )
  flushed = []
  object.__setattr__(
    runner, 'before_batch', lambda i: flushed.append(runner.writer.flushed)
  )
  runner.decode(None, 3)
  runner.evaluate(1.5, 3)
  assert flushed == [0, 0, 1, 1, 2, 2, 3, 3]
  assert runner.writer.flushed == 4


def test_decoding():
  runner, _ = _eval_runner(decodes=[Program('p', _decoded)])
  found = runner.decode(None, 3)
  assert list(found) == ['p'] and found['p'].steps_per_sec > 0
  ((step, split, scalars),) = runner.writer.written
  assert (step, split, scalars['x']) == (3, 'decode_test_p', 1)
  assert scalars['Steps/sec'] > 0
  assert runner.progress.lines == ['step 3  decoded p: 4 batches']
  assert runner.progress.bars[1] == ('decode p', 1, None)


def test_one_decoded_batch():
  one = Program(
    'p', lambda state: DecodeProgramOutput(state, num_decode_steps=1)
  )
  runner, _ = _eval_runner(decodes=[one])
  runner.decode(None, 3)
  assert runner.progress.lines == ['step 3  decoded p: 1 batch']


def test_a_signal_ends_a_pass():
  def stop(count):
    raise StopIteration

  runner, _ = _eval_runner(evals=[Program('a', _evaluated)])
  object.__setattr__(runner, 'before_batch', stop)
  with pytest.raises(StopIteration):
    runner.evals[0].run(0, 0)


def test_names_are_unique():
  with pytest.raises(ValueError, match="got 'a' for 2 inputs"):
    _eval_runner(evals=[Program('a', _evaluated), Program('a', _evaluated)])
