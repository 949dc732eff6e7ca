# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The decision to end a run that diverged, and its report."""

from __future__ import annotations

import types

import pytest

from pax.programs import divergence
from pax.programs.step_status import StepStatus

FINE = StepStatus(is_finite=True, is_skipped=False)
# Skipped, for its norm is above skip_step_gradient_norm_value.
LARGE = StepStatus(is_finite=True, is_skipped=True)
SKIPPED = StepStatus(is_finite=False, is_skipped=True)
APPLIED = StepStatus(is_finite=False, is_skipped=False)


class Checkpointer:
  """Records pins."""

  def __init__(self, latest=None):
    self.latest = latest
    self.pins = []

  def latest_step(self):
    return self.latest

  def wait(self):
    pass

  def pin(self, step, *, permanently=False):
    self.pins.append((step, permanently))

  def unpin(self, step):
    self.pins.append((step, None))


class Program:
  """Locates what it is given, or fails."""

  def __init__(self, report=None):
    self.report = report
    self.calls = []

  def locate_nonfinite(self, state, step, batch):
    self.calls.append((state, step, batch))
    if isinstance(self.report, Exception):
      raise self.report
    return self.report


def _monitor(limit=3, mode='locate', latest=None, report=None):
  lines = []
  job = types.SimpleNamespace(
    job_log_dir='/job',
    checkpointer=Checkpointer(latest),
    train_program=Program(report),
    progress=types.SimpleNamespace(print=lines.append),
    partitioner=types.SimpleNamespace(mesh=None),
    task=types.SimpleNamespace(
      train=types.SimpleNamespace(
        max_consecutive_nonfinite_steps=limit, detect_nan=mode
      )
    ),
  )
  return divergence.DivergenceMonitor(job), job, lines


def _finish(monitor, statuses, first=0):
  for step, status in enumerate(statuses, first):
    monitor.finish_step(step, status, f'batch {step}')


@pytest.mark.parametrize(
  ('statuses', 'limit', 'expected'),
  [
    ([FINE] * 9, 3, False),
    ([SKIPPED, SKIPPED, FINE, SKIPPED, SKIPPED], 3, False),
    ([FINE, SKIPPED, SKIPPED, SKIPPED], 3, True),
    ([APPLIED] * 3, 3, True),
    # It stays so for any steps in flight.
    ([SKIPPED] * 3 + [FINE] * 2, 3, True),
    # A large finite gradient is no divergence, however often it is skipped.
    ([LARGE] * 9, 3, False),
    ([SKIPPED, SKIPPED, LARGE, SKIPPED], 3, False),
    ([SKIPPED], 1, True),
    ([SKIPPED] * 99, 0, False),
    ([SKIPPED] * 99, None, False),
  ],
)
def test_consecutive_non_finite_steps_end_the_run(statuses, limit, expected):
  monitor, _, _ = _monitor(limit)
  _finish(monitor, statuses)
  assert monitor.has_diverged == expected


def test_counts():
  monitor, _, _ = _monitor(limit=0)
  shown = []
  for i, status in enumerate([FINE, LARGE, SKIPPED, APPLIED, FINE]):
    _finish(monitor, [status], first=i)
    shown.append(monitor.counts.progress_metrics())
  assert shown == [
    {},
    {'skipped': 1, 'in a row': 1},
    {'skipped': 2, 'non-finite': 1, 'in a row': 2},
    {'skipped': 2, 'non-finite': 2, 'in a row': 2},
    {'skipped': 2, 'non-finite': 2},
  ]


def test_the_report_names_the_step_the_checkpoint_and_the_place():
  monitor, job, lines = _monitor(limit=2, latest=4, report='in layer 3')
  assert monitor.may_save(6, 'state')
  _finish(monitor, [FINE, SKIPPED, SKIPPED, SKIPPED], first=6)
  job.checkpointer.latest = 8
  monitor.report('state')
  assert lines == [
    'The run diverged: 2 steps in a row, since step 7, had a non-finite loss or'
    ' gradient; the last checkpoint before them, step 6, is kept',
    'The first NaN or inf of step 7: in layer 3',
    'Started again, this job continues from step 8. To continue from step 6,'
    ' move the newer checkpoints out of /job/checkpoints first. A new job takes'
    ' its variables with --init_from=/job@6',
  ]
  assert job.train_program.calls == [('state', 7, 'batch 7')]
  assert job.checkpointer.pins == [(6, True)]


@pytest.mark.parametrize(
  ('report', 'text'),
  [
    ([], 'Step 0 is finite when it is run again'),
    (None, 'cannot locate'),
    (RuntimeError('out of memory'), 'could not be located: out of memory'),
  ],
)
def test_a_place_that_is_not_known(report, text):
  monitor, _, lines = _monitor(limit=1, report=report)
  _finish(monitor, [SKIPPED])
  monitor.report('state')
  assert 'there is no checkpoint before them' in lines[0]
  assert text in lines[1]
  assert lines[2] == 'Started again, this job starts from step 0'


def test_no_step_is_run_again_without_detect_nan():
  monitor, job, lines = _monitor(limit=1, mode='off', report='x')
  _finish(monitor, [SKIPPED])
  monitor.report('state')
  assert len(lines) == 2 and not job.train_program.calls


def test_the_first_non_finite_step_is_located_once():
  monitor, job, lines = _monitor(limit=2, mode='first', report='in layer 3')
  _finish(monitor, [FINE])
  monitor.locate_first('a')
  _finish(monitor, [SKIPPED, FINE, SKIPPED], first=1)
  monitor.locate_first('b')
  monitor.locate_first('c')
  assert lines == ['step 3: The first NaN or inf of step 3: in layer 3']
  _finish(monitor, [SKIPPED], first=4)
  monitor.report('d')
  assert job.train_program.calls == [('b', 3, 'batch 3')]
  assert len(lines) == 3


def test_the_last_checkpoint_before_is_pinned_until_the_run_recovers(
  monkeypatch,
):
  names = {'finite': (), 'poisoned': ('variable w (NaN)',)}
  monkeypatch.setattr(
    divergence.nonfinite, 'nonfinite_arrays', lambda state, *_: names[state]
  )
  monitor, job, _ = _monitor(limit=9, latest=2)
  _finish(monitor, [SKIPPED], first=2)
  assert monitor.may_save(3, 'finite')
  assert not monitor.may_save(4, 'poisoned')
  _finish(monitor, [FINE], first=5)
  assert monitor.may_save(6, 'finite')
  assert job.checkpointer.pins == [(2, False), (2, False), (2, None)]
  _finish(monitor, [SKIPPED], first=6)
  assert monitor.may_save(7, 'finite')
  assert job.checkpointer.pins[3:] == [(6, False)]
