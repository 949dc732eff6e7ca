# SPDX-License-Identifier: Apache-2.0
"""A study: which trials there are, and what became of them."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from absl import logging

from pax.studies import errors, trial_metrics
from pax.studies.search import Search
from pax.summaries import jsonl
from pax.tuning import aggregators, space
from pax.tuning.trial import Status, Trial

STUDY_FILE = 'study.jsonl'

_EXIT_PREEMPTED = 75
# A trial that is killed is begun so often.
_MAX_ATTEMPTS = 3
_POLL_SECS = 0.1


class Process(Protocol):
  """What runs a trial."""

  def poll(self) -> int | None:
    """Returns its exit code, None as long as it runs."""

  def send_signal(self, number: int) -> None:
    """Sends it a signal."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """How many trials."""

  # In all; unset: as the search says.
  num_trials: int | None = None
  # At a time.
  parallel: int = 1


@dataclasses.dataclass
class _Course:
  """How a trial goes while the study runs."""

  # Which of its runs it is at, and how often that was begun.
  part: int = 0
  attempts: int = 0
  # How much there was to read of it, and how many steps that was.
  size: int = 0
  seen: int = 0
  # Whether it was told to end.
  ended_early: bool = False


class Study:
  """Runs trials until none is left, and remembers them in a file."""

  def __init__(
    self,
    directory: str,
    searched: space.Space,
    search: Search,
    limits: Limits,
    start: Callable[[Trial, str], Process],
  ):
    """Reads what earlier runs of the study did.

    Args:
      directory: Where the file is, and a directory for each trial.
      searched: What is searched.
      search: How.
      limits: How long.
      start: Begins one of the runs of a trial.

    Raises:
      ValueError: the directory has a study of other constants.
    """
    self._directory, self._space, self._search = directory, searched, search
    self._parallel, self._start = limits.parallel, start
    self._limit = limits.num_trials or search.hparams.max_num_trials
    self._path = os.path.join(directory, STUDY_FILE)
    self._trials = {t.id: t for t in read(self._path)}
    self._running: dict[int, Process] = {}
    self._courses: dict[int, _Course] = collections.defaultdict(_Course)
    self._failure: str | None = None
    self.stopped = False
    for known in self.trials:
      if set(known.settings) != set(searched.names):
        raise ValueError(
          f'{directory} has a study of {", ".join(known.settings)}, not of'
          f' {", ".join(searched.names)}; use another --job_log_dir'
        )

  @property
  def trials(self) -> list[Trial]:
    """All trials so far."""
    return [self._trials[id] for id in sorted(self._trials)]

  def stop(self) -> None:
    """Lets trials save and end; the next run of the study goes on."""
    self.stopped = True
    for process in self._running.values():
      process.send_signal(signal.SIGTERM)

  def run(self) -> None:
    """Runs the trials that are left.

    Raises:
      ValueError: a trial failed, and the search does not skip its error.
    """
    while True:
      while len(self._running) < self._parallel and (trial := self._next()):
        self._begin(trial)
      if not self._running:
        break
      time.sleep(_POLL_SECS)
      for id, process in list(self._running.items()):
        code = process.poll()
        if code is not None:
          del self._running[id]
          self._end(self._trials[id], code)
        elif self._is_to_end(id):
          self._courses[id].ended_early = True
          process.send_signal(signal.SIGTERM)
    if self._failure:
      raise ValueError(self._failure)

  def _next(self) -> Trial | None:
    if self.stopped or self._failure:
      return None
    for trial in self.trials:
      if trial.status is Status.RUNNING and trial.id not in self._running:
        return trial
    if len(self._trials) >= self._limit:
      return None
    settings = self._search.propose(self._space, self.trials)
    return settings and Trial(len(self._trials) + 1, settings)

  def _begin(self, trial: Trial) -> None:
    self._record(trial)
    course = self._courses[trial.id]
    course.attempts += 1
    part = self._search.sub_experiments[course.part]
    self._running[trial.id] = self._start(trial, part)

  def _end(self, trial: Trial, code: int) -> None:
    course = self._courses[trial.id]
    if course.ended_early:
      self._record(self._measured(trial, stopped_early=True))
    elif code == 0:
      self._go_on(trial)
    elif self.stopped:
      return
    elif code < 0 or code == _EXIT_PREEMPTED:
      logging.warning('Trial %d was killed; it is run again', trial.id)
      if course.attempts >= _MAX_ATTEMPTS:
        self._failure = f'trial {trial.id} was killed {_MAX_ATTEMPTS} times'
    else:
      self._fail(trial)

  def _go_on(self, trial: Trial) -> None:
    """Begins the next run of a trial, if it has one."""
    course = self._courses[trial.id]
    if course.part + 1 == len(self._search.sub_experiments):
      self._record(self._measured(trial))
    elif not self.stopped:
      course.part, course.attempts = course.part + 1, 0
      self._begin(trial)

  def _fail(self, trial: Trial) -> None:
    part = self._search.sub_experiments[self._courses[trial.id].part]
    log = log_file(self._directory, trial.id, part)
    error = errors.of_log(log)
    if error.is_one_of(self._search.hparams.errors_to_skip or ()):
      logging.warning('Trial %d is skipped: %s', trial.id, error)
      self._record(_skipped(trial, str(error)))
      return
    self._failure = (
      f'trial {trial.id} failed: {error} ({log}); mend it and start the study'
      ' again, or name the error in errors_to_skip'
    )

  def _is_to_end(self, id: int) -> bool:
    """Whether what is new of a trial says that it should end."""
    search, course = self._search, self._courses[id]
    size = trial_metrics.size(self._directories(id))
    if course.ended_early or size == course.size:
      return False
    course.size = size
    found = self._found(id)
    if found.signal or not search.is_to_stop:
      return found.signal is not None
    ids = [other for other in self._trials if other != id]
    others = [self._found(other).history for other in ids]
    seen, course.seen = course.seen, len(found.history)
    return any(
      search.is_to_stop(found.history[:end], others)
      for end in range(seen + 1, course.seen + 1)
    )

  def _measured(self, trial: Trial, *, stopped_early: bool = False) -> Trial:
    """The trial with its reward, or skipped if it has none."""
    search, found = self._search, self._found(trial.id)
    signal, history = found.signal, found.history
    if signal and not signal.skip:
      metrics, value = signal.metrics or {}, signal.reward
      if value is None:
        value = search.reward(metrics, signal.step)
      return _done(trial, value, signal.step, metrics)
    keep = search.hparams.treats_early_stopped_trials_as_done
    if (stopped_early or signal) and not (keep and history):
      reason = signal and signal.skip_reason
      return _skipped(trial, reason or 'stopped early')
    if not history:
      return _skipped(trial, f'{search.metrics_from} measured nothing')
    step, metrics = history[-1][0], search.aggregate(history)
    value = search.reward(metrics, step) if search.reward else 0.0
    return _done(trial, value, step, metrics)

  def _found(self, id: int) -> trial_metrics.Measured:
    search = self._search
    directories = self._directories(id)
    return trial_metrics.read(directories, search.metrics_from, search.reward)

  def _directories(self, id: int) -> dict[str, str]:
    """Where the runs of a trial are, by their names."""
    return {
      part: job_log_dir(self._directory, id, part)
      for part in self._search.sub_experiments
    }

  def _record(self, trial: Trial) -> None:
    self._trials[trial.id] = trial
    with jsonl.open_to_append(self._path) as f:
      jsonl.append(f, dataclasses.asdict(trial))
    if trial.status is Status.DONE:
      print(f'trial {trial.id}  reward {trial.reward:.6g}  {trial.settings}')


def read(path: str) -> list[Trial]:
  """The trials in the file of a study, each as it was recorded last."""
  found = {
    record['id']: Trial(**record | {'status': Status(record['status'])})
    for record in jsonl.read(path)
  }
  return list(found.values())


def job_log_dir(directory: str, id: int, part: str) -> str:
  """Where a run of a trial writes."""
  return os.path.join(directory, str(id), part).rstrip(os.sep)


def log_file(directory: str, id: int, part: str = '') -> str:
  """Where what a run of a trial prints is kept."""
  name = f'trial_{id}_{part}' if part else f'trial_{id}'
  return os.path.join(directory, 'logs', f'{name}.log')


def _done(
  trial: Trial, value: float, step: int, metrics: dict[str, float]
) -> Trial:
  """The trial with its reward; skipped if that is no number."""
  if not math.isfinite(value):
    return _skipped(trial, f'the reward is {value}')
  step %= aggregators.SUB_EXPERIMENT_STEP_OFFSET
  return dataclasses.replace(
    trial, status=Status.DONE, reward=value, step=step, metrics=metrics
  )


def _skipped(trial: Trial, reason: str) -> Trial:
  return dataclasses.replace(trial, status=Status.SKIPPED, reason=reason)
