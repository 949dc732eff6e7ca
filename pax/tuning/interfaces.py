# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a search: algorithm, reward, aggregator, early stopping."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pax.tuning.metrics import Metric
from pax.tuning.space import Settings, Space
from pax.tuning.trial import Trial
from praxis import base_hyperparams, pax_fiddle

Parameterizable = base_hyperparams.FiddleBaseParameterizable
Config = pax_fiddle.Config

# Returns the settings of the next trial from the space and all trials, running
# ones included; None if none is left. It is stateless, so that a study that is
# started again continues as if it had not stopped.
Trials = Sequence[Trial]
Proposer = Callable[[Space, Trials], Settings | None]
# (step, metrics by name), in order.
History = Sequence[tuple[int, dict[str, float]]]
# Returns whether to stop a trial, from its history, whose last entry is new,
# and the histories of the other trials.
Stopper = Callable[[History, Sequence[History]], bool]
# A Stopper that gets the id of the trial and the histories of all trials by id.
TrialStopper = Callable[[int, Mapping[int, History]], bool]
ErrorToSkip = type[Exception] | tuple[type[Exception], str]


class BaseAlgorithm(Parameterizable, metaclass=abc.ABCMeta):
  """Proposes the settings of trials."""

  @abc.abstractmethod
  def __call__(self) -> Proposer:
    """Returns the function that proposes settings."""

  def open(self, directory: str) -> Proposer:
    """Returns the function for the study in a directory, which may keep state.

    The function of `__call__`, unless the algorithm overrides this.
    """
    del directory
    return self()


class BaseEarlyStoppingPolicy(Parameterizable, metaclass=abc.ABCMeta):
  """Decides which trials end early."""

  @abc.abstractmethod
  def __call__(self) -> Stopper:
    """Returns the function that decides about a running trial."""

  def open(self, directory: str) -> TrialStopper:
    """Returns the function for the study in a directory, which may keep state.

    The function of `__call__`, unless the policy overrides this.
    """
    del directory
    should_stop = self()

    def should_stop_trial(id: int, histories: Mapping[int, History]) -> bool:
      others = [h for other, h in histories.items() if other != id]
      return should_stop(histories[id], others)

    return should_stop_trial


class BaseReward(Parameterizable, metaclass=abc.ABCMeta):
  """The objective: a number computed from metrics, to be maximized."""

  @abc.abstractmethod
  def __call__(self, metrics_dict: dict[str, float], global_step: int) -> float:
    """Returns the reward of metrics by name at a step."""

  @property
  @abc.abstractmethod
  def used_metrics(self) -> Sequence[Metric]:
    """The metrics that the reward depends on."""

  @property
  def needs_train(self) -> bool:
    """Whether any of them is a training metric."""
    return any(metric.is_train_metric for metric in self.used_metrics)

  @property
  def needs_eval(self) -> bool:
    """Whether any of them is an evaluation metric."""
    return any(metric.is_eval_metric for metric in self.used_metrics)

  @property
  def needs_decode(self) -> bool:
    """Whether any of them is a decoding metric."""
    return any(metric.is_decode_metric for metric in self.used_metrics)


class CrossStepMetricAggregator(Parameterizable, metaclass=abc.ABCMeta):
  """Reduces the metrics of a trial's steps to those of the trial."""

  @abc.abstractmethod
  def __call__(self, metrics_across_steps: History) -> dict[str, float]:
    """Returns metrics by name from (step, metrics) in order."""


@dataclasses.dataclass
class SearchHParams:
  """The search of an experiment, returned by its `search()`."""

  # The algorithm; None: Sweeping.
  search_algorithm: Config[BaseAlgorithm] | None = None
  # The objective; None: every trial has reward 0.
  search_reward: Config[BaseReward] | None = None
  # The early stopping policy; None: no early stopping.
  early_stopping: Config[BaseEarlyStoppingPolicy] | None = None
  # The aggregator over steps; None: the metrics of the last step.
  cross_step_metric_aggregator: Config[CrossStepMetricAggregator] | None = None
  # Maximum number of trials; `--num_trials` takes precedence.
  max_num_trials: int = 1_000_000
  # Errors that skip a trial: a type, or (type, regex of the message).
  errors_to_skip: list[ErrorToSkip] | None = None
  # Not supported: there is no search service.
  prior_study_ids: list[int] | None = None
  # Ignored, as above.
  add_prior_trials: bool = False
  # Ignored: every trial writes its configuration to its directory.
  add_experiment_config_to_metadata: bool = True
  # Whether trials that stop early have a reward; otherwise they are skipped.
  treats_early_stopped_trials_as_done: bool = False
  # Ignored: trials train to their last step.
  train_to_end: bool = False
  # Ignored: constants are searched wherever they are used.
  enable_dataset_tuning: bool = False
  enable_partitioner_tuning: bool = False
  enable_train_programs_tuning: bool = False
  # Not supported: there is no search service.
  vizier_service_endpoint: str | None = None
