# SPDX-License-Identifier: Apache-2.0
"""A study: which trials there are, and what became of them."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from absl import logging

from pax.runner.studies import errors, measured
from pax.summaries import jsonl
from pax.tuning import aggregators, algorithms, interfaces, space
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
class Search:
  """A search whose parts are built."""

  # How, as the experiment says.
  hparams: interfaces.SearchHParams
  # Where metrics are from: train, eval or decode.
  metrics_from: str
  # What to try next.
  propose: interfaces.Proposer
  # What is maximized.
  reward: interfaces.BaseReward | None
  # Metrics of a trial from those of its steps.
  aggregate: interfaces.CrossStepMetricAggregator
  # Which trials end early.
  is_to_stop: interfaces.Stopper | None

  @classmethod
  def of(cls, hparams: interfaces.SearchHParams, metrics_from: str) -> Search:
    """Builds the parts.

    Raises:
      ValueError: they want metrics or a service that is not there.
    """
    if hparams.prior_study_ids or hparams.vizier_service_endpoint:
      raise ValueError(
        'prior_study_ids and vizier_service_endpoint must be None: there is no'
        ' search service to ask'
      )

    def built(config: Any, usual: Any = None) -> Any:
      return config.Instantiate() if config is not None else usual

    algorithm = built(hparams.search_algorithm, algorithms.Sweeping())
    reward = built(hparams.search_reward)
    last = aggregators.LastReportedMetricValues()
    early = built(hparams.early_stopping)
    wants = 'decode' if reward and reward.needs_decode else 'eval'
    needs_more = reward and (reward.needs_eval or reward.needs_decode)
    if needs_more and metrics_from not in (wants, 'decode'):
      raise ValueError(
        f'the reward wants --metrics_from={wants}, got {metrics_from}'
      )
    return cls(
      hparams=hparams,
      metrics_from=metrics_from,
      propose=algorithm(),
      reward=reward,
      aggregate=built(hparams.cross_step_metric_aggregator, last),
      is_to_stop=early and early(),
    )


@dataclasses.dataclass(frozen=True)
class Limits:
  """How many trials."""

  # In all; unset: as the search says.
  num_trials: int | None = None
  # At a time.
  parallel: int = 1


class Study:
  """Runs trials until none is left, and remembers them in a file."""

  def __init__(
    self,
    directory: str,
    searched: space.Space,
    search: Search,
    limits: Limits,
    start: Callable[[Trial], Process],
  ):
    """Reads what earlier runs of the study did.

    Args:
      directory: Where the file is, and a directory for each trial.
      searched: What is searched.
      search: How.
      limits: How long.
      start: Begins a trial.

    Raises:
      ValueError: the directory has a study of other constants.
    """
    self._directory, self._space, self._search = directory, searched, search
    self._parallel, self._start = limits.parallel, start
    self._limit = limits.num_trials or search.hparams.max_num_trials
    self._path = os.path.join(directory, STUDY_FILE)
    self._trials = {t.id: t for t in read(self._path)}
    self._running: dict[int, Process] = {}
    self._attempts: dict[int, int] = {}
    self._ended_early: set[int] = set()
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
        elif self._is_behind(id):
          self._ended_early.add(id)
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
    self._attempts[trial.id] = self._attempts.get(trial.id, 0) + 1
    self._running[trial.id] = self._start(trial)

  def _end(self, trial: Trial, code: int) -> None:
    if trial.id in self._ended_early:
      self._record(self._measured(trial, stopped_early=True))
    elif code == 0:
      self._record(self._measured(trial))
    elif self.stopped:
      return
    elif code < 0 or code == _EXIT_PREEMPTED:
      logging.warning('Trial %d was killed; it is run again', trial.id)
      if self._attempts[trial.id] >= _MAX_ATTEMPTS:
        self._failure = f'trial {trial.id} was killed {_MAX_ATTEMPTS} times'
    else:
      self._fail(trial)

  def _fail(self, trial: Trial) -> None:
    log = log_file(self._directory, trial.id)
    error = errors.of_log(log)
    if error.is_one_of(self._search.hparams.errors_to_skip or ()):
      logging.warning('Trial %d is skipped: %s', trial.id, error)
      self._record(_skipped(trial, str(error)))
      return
    self._failure = (
      f'trial {trial.id} failed: {error} ({log}); mend it and start the study'
      ' again, or name the error in errors_to_skip'
    )

  def _is_behind(self, id: int) -> bool:
    is_to_stop = self._search.is_to_stop
    if is_to_stop is None or id in self._ended_early:
      return False
    return is_to_stop(self._history(id))

  def _measured(self, trial: Trial, *, stopped_early: bool = False) -> Trial:
    """The trial with its reward, or skipped if it has none."""
    keep = self._search.hparams.treats_early_stopped_trials_as_done
    if stopped_early and not keep:
      return _skipped(trial, 'stopped early')
    history = self._history(trial.id)
    if not history:
      return _skipped(trial, f'{self._search.metrics_from} measured nothing')
    step, metrics = history[-1][0], self._search.aggregate(history)
    reward = self._search.reward
    value = reward(metrics, step) if reward else 0.0
    if not math.isfinite(value):
      return _skipped(trial, f'the reward is {value}')
    return dataclasses.replace(
      trial, status=Status.DONE, reward=value, step=step, metrics=metrics
    )

  def _history(self, id: int) -> Sequence[tuple[int, dict[str, float]]]:
    directory = os.path.join(self._directory, str(id))
    search = self._search
    return measured.history(directory, search.metrics_from, search.reward)

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


def log_file(directory: str, id: int) -> str:
  """Where what a trial prints is kept."""
  return os.path.join(directory, 'logs', f'trial_{id}.log')


def _skipped(trial: Trial, reason: str) -> Trial:
  return dataclasses.replace(trial, status=Status.SKIPPED, reason=reason)
