# SPDX-License-Identifier: Apache-2.0
"""A study: starts trials, follows them, and records their results."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from absl import logging

from pax import exit_codes
from pax.files import side_files
from pax.studies import errors, trial_metrics
from pax.studies.search import Search
from pax.summaries import jsonl
from pax.tuning import aggregators, interfaces, space
from pax.tuning.trial import Status, Trial

STUDY_FILE = 'study.jsonl'

# Number of times that a trial is started after it was killed.
_MAX_ATTEMPTS = 3
_POLL_SECS = 0.1
# What writes metrics, by their source.
_REMEDIES = {
  'train': 'lower task.train.summary_interval_steps',
  'eval': 'add inputs to datasets(), or use --metrics_from=train',
  'decode': 'add inputs to decoder_datasets(), or use --metrics_from=eval',
}


class Process(Protocol):
  """The process of a trial, such as subprocess.Popen."""

  def poll(self) -> int | None:
    """Returns the exit code, or None while it runs."""

  def send_signal(self, number: int) -> None:
    """Sends a signal to it."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """Numbers of trials."""

  # In total; None: that of the search.
  num_trials: int | None = None
  # Running at a time.
  parallel: int = 1


@dataclasses.dataclass
class _TrialState:
  """State of a trial while the study runs."""

  # Index of its current run, and how often that was started.
  part: int = 0
  attempts: int = 0
  # Bytes of metrics and number of steps that were read.
  num_bytes: int = 0
  num_steps: int = 0
  # Metrics of the last of these steps, which later inputs may complete.
  last_metrics: dict[str, float] | None = None
  # Whether it was asked to stop.
  stopped_early: bool = False
  # Number of signals that it was sent because the study stops.
  num_stops: int = 0

  def take_new_steps(self, history: interfaces.History) -> range:
    """Returns the numbers of steps that end with one that has new metrics."""
    seen = min(self.num_steps, len(history))
    if seen and history[seen - 1][1] != self.last_metrics:
      seen -= 1
    self.num_steps = len(history)
    self.last_metrics = history[-1][1] if history else None
    return range(seen + 1, self.num_steps + 1)


class Study:
  """Runs trials until none is left, and records them in a file."""

  def __init__(
    self,
    directory: str,
    search_space: space.Space,
    search: Search,
    limits: Limits,
    start: Callable[[Trial, str], Process],
  ):
    """Reads the trials of earlier runs of the study.

    Args:
      directory: of the file of the study, and of its trials.
      search_space: the constants to search.
      search: how to search them.
      limits: numbers of trials.
      start: starts one run of a trial, given the sub-experiment.

    Raises:
      ValueError: the directory has a study of other constants.
    """
    self._directory, self._space = directory, search_space
    self._search = search
    self._parallel, self._start = limits.parallel, start
    self._limit = limits.num_trials or search.hparams.max_num_trials
    self._path = os.path.join(directory, STUDY_FILE)
    records = jsonl.repair(self._path, parse)
    self._trials = {trial.id: trial for trial in records}
    self._running: dict[int, Process] = {}
    self._states: dict[int, _TrialState] = collections.defaultdict(_TrialState)
    self._failure: str | None = None
    self._num_stops = 0
    self.stopped = False
    others = [
      trial
      for trial in self.trials
      if set(trial.settings) != set(search_space.names)
    ]
    if others and len(others) == len(self._trials):
      raise ValueError(
        f'{directory} has a study of {", ".join(others[0].settings)}, not of'
        f' {", ".join(search_space.names)}; use another --job_log_dir'
      )
    for trial in others:
      logging.warning('%s: trial %d has other constants', self._path, trial.id)
      del self._trials[trial.id]

  @property
  def trials(self) -> list[Trial]:
    """All trials so far, by id."""
    return [self._trials[id] for id in sorted(self._trials)]

  def stop(self) -> None:
    """Stops the trials, which save; the next run of the study continues.

    `run` sends them a signal for each call, in its own thread.
    """
    self._num_stops += 1
    self.stopped = True

  def run(self) -> None:
    """Runs the remaining trials.

    Raises:
      ValueError: a trial fails with an error that the search does not skip.
    """
    while True:
      while len(self._running) < self._parallel and (
        trial := self._next_trial()
      ):
        self._start_run(trial)
      if not self._running:
        break
      time.sleep(_POLL_SECS)
      for id, process in list(self._running.items()):
        code = process.poll()
        if code is not None:
          del self._running[id]
          self._finish_run(self._trials[id], code)
        elif self._states[id].num_stops < self._num_stops:
          self._states[id].num_stops = self._num_stops
          process.send_signal(signal.SIGTERM)
        elif self._should_stop(id):
          self._states[id].stopped_early = True
          process.send_signal(signal.SIGTERM)
    if self._failure:
      raise ValueError(self._failure)

  def _next_trial(self) -> Trial | None:
    if self.stopped or self._failure:
      return None
    for trial in self.trials:
      if trial.status is Status.RUNNING and trial.id not in self._running:
        return trial
    if len(self._trials) >= self._limit:
      return None
    settings = self._search.propose(self._space, self.trials)
    if not settings:
      return None
    # The largest id, not the number of trials: damaged records are left out.
    return Trial(max(self._trials, default=0) + 1, settings)

  def _start_run(self, trial: Trial) -> None:
    self._record(trial)
    state = self._states[trial.id]
    state.attempts += 1
    part = self._search.sub_experiments[state.part]
    self._running[trial.id] = self._start(trial, part)

  def _finish_run(self, trial: Trial, code: int) -> None:
    state = self._states[trial.id]
    if state.stopped_early:
      self._record(self._evaluated(trial, stopped_early=True))
    elif code == 0:
      self._continue(trial)
    elif self.stopped:
      return
    elif code == exit_codes.DIVERGED:
      logging.warning('Trial %d diverged', trial.id)
      self._record(self._evaluated(trial))
    elif code < 0 or code == exit_codes.PREEMPTED:
      logging.warning('Trial %d was killed; starting it again', trial.id)
      if state.attempts >= _MAX_ATTEMPTS:
        self._failure = f'trial {trial.id} was killed {_MAX_ATTEMPTS} times'
    else:
      self._fail(trial)

  def _continue(self, trial: Trial) -> None:
    """Starts the next run of a trial, or records the trial as done."""
    state = self._states[trial.id]
    if state.part + 1 == len(self._search.sub_experiments):
      self._record(self._evaluated(trial))
    elif not self.stopped:
      state.part, state.attempts = state.part + 1, 0
      self._start_run(trial)

  def _fail(self, trial: Trial) -> None:
    part = self._search.sub_experiments[self._states[trial.id].part]
    log = log_file(self._directory, trial.id, part)
    error = errors.read_log(log)
    if error.matches_any(self._search.hparams.errors_to_skip or ()):
      logging.warning('Trial %d is skipped: %s', trial.id, error)
      self._record(_skipped(trial, str(error)))
      return
    self._failure = (
      f'trial {trial.id} failed: {error} ({log}); fix it and start the study'
      ' again, or add the error to errors_to_skip'
    )

  def _should_stop(self, id: int) -> bool:
    """Whether new metrics of a trial, or its reward, stop it early."""
    search, state = self._search, self._states[id]
    num_bytes = trial_metrics.num_bytes(self._directories(id))
    if state.stopped_early or num_bytes == state.num_bytes:
      return False
    state.num_bytes = num_bytes
    metrics = self._read_metrics(id)
    if metrics.signal or not search.should_stop:
      return metrics.signal is not None
    others = {
      other: self._read_metrics(other).history for other in self._trials
    }
    return any(
      search.should_stop(id, others | {id: metrics.history[:end]})
      for end in state.take_new_steps(metrics.history)
    )

  def _evaluated(self, trial: Trial, *, stopped_early: bool = False) -> Trial:
    """The trial with its reward, or skipped if it has none."""
    search, trial_history = self._search, self._read_metrics(trial.id)
    signal, history = trial_history.signal, trial_history.history
    if signal and not signal.skip and signal.step is not None:
      metrics, value = signal.metrics or {}, signal.reward
      if value is None:
        value = search.reward_of(metrics, signal.step)
      return _done(trial, value, signal.step, metrics)
    keep = search.hparams.treats_early_stopped_trials_as_done
    if (stopped_early or signal) and not (keep and history):
      reason = signal and signal.skip_reason
      return _skipped(trial, reason or 'stopped early')
    if not history:
      source = search.metrics_from
      return _skipped(trial, f'{source} wrote no metrics; {_REMEDIES[source]}')
    step, metrics = history[-1][0], search.aggregate(history)
    return _done(trial, search.reward_of(metrics, step), step, metrics)

  def _read_metrics(self, id: int) -> trial_metrics.TrialHistory:
    search = self._search
    directories = self._directories(id)
    return trial_metrics.read(
      directories,
      search.metrics_from,
      search.reward,
      is_running=id in self._running,
    )

  def _directories(self, id: int) -> dict[str, str]:
    """The directories of the runs of a trial, by sub-experiment."""
    return {
      part: job_log_dir(self._directory, id, part)
      for part in self._search.sub_experiments
    }

  def _record(self, trial: Trial) -> None:
    self._trials[trial.id] = trial
    with side_files.tolerate_errors(self._path):
      file = jsonl.Appender(self._path)
      with contextlib.closing(file):
        file.append(dataclasses.asdict(trial))
    if trial.status is Status.DONE:
      values = self._search.shown_values(trial.metrics)
      if self._search.reward and trial.reward is not None:
        values = {'reward': trial.reward}
      shown = '  '.join(f'{name} {v:.6g}' for name, v in values.items())
      print(f'trial {trial.id}  {shown}  {trial.settings}')


def read(path: str) -> list[Trial]:
  """Returns the trials in the file of a study, each as recorded last."""
  return list({t.id: t for t in jsonl.read(path, parse)}.values())


def job_log_dir(directory: str, id: int, part: str) -> str:
  """Returns the directory of a run of a trial."""
  return os.path.join(directory, str(id), part).rstrip(os.sep)


def log_file(directory: str, id: int, part: str = '') -> str:
  """Returns the file with the output of a run of a trial."""
  name = f'trial_{id}_{part}' if part else f'trial_{id}'
  return os.path.join(directory, 'logs', f'{name}.log')


def parse(value: Any) -> Trial:
  """Returns the trial of a record.

  Raises:
    TypeError, KeyError, ValueError: It is damaged.
  """
  number = side_files.NUMBER
  side_files.check_fields(value, {'id': int, 'settings': dict, 'status': str})
  trial = Trial(**value | {'status': Status(value['status'])})
  side_files.check_fields(
    dataclasses.asdict(trial),
    {
      'reward': (*number, type(None)),
      'step': int,
      'metrics': dict,
      'reason': str,
    },
  )
  settings, metrics = trial.settings, trial.metrics
  side_files.check_fields(settings, dict.fromkeys(settings, str))
  side_files.check_fields(metrics, dict.fromkeys(metrics, number))
  return trial


def _done(
  trial: Trial, value: float, step: int, metrics: dict[str, float]
) -> Trial:
  """The trial with its reward; skipped if that is not finite."""
  if not math.isfinite(value):
    return _skipped(trial, f'the reward is {value}')
  step %= aggregators.SUB_EXPERIMENT_STEP_OFFSET
  return dataclasses.replace(
    trial, status=Status.DONE, reward=value, step=step, metrics=metrics
  )


def _skipped(trial: Trial, reason: str) -> Trial:
  return dataclasses.replace(trial, status=Status.SKIPPED, reason=reason)
