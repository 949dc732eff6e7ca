# SPDX-License-Identifier: Apache-2.0
"""What a search consists of: algorithm, reward, aggregator, stopping."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

from pax.tuning.metrics import Metric
from pax.tuning.space import Settings, Space
from pax.tuning.trial import Trial
from praxis import base_hyperparams, pax_fiddle

Parameterizable = base_hyperparams.FiddleBaseParameterizable
Config = pax_fiddle.Config

# The settings of the next trial, from the space and the trials so far, those
# that still run included; None when none is left. It keeps no state of its
# own, so a study that is started again goes on as if it had never stopped.
Proposer = Callable[[Space, Sequence[Trial]], Settings | None]
# What was measured at each step, by name.
History = Sequence[tuple[int, dict[str, float]]]
# Whether a trial is to be stopped, from its history, whose last entry is new,
# and from the histories of the other trials.
Stopper = Callable[[History, Sequence[History]], bool]
ErrorToSkip = type[Exception] | tuple[type[Exception], str]


class BaseAlgorithm(Parameterizable, metaclass=abc.ABCMeta):
  """Decides what to try next."""

  @abc.abstractmethod
  def __call__(self) -> Proposer:
    """Returns what proposes the settings of trials."""


class BaseEarlyStoppingPolicy(Parameterizable, metaclass=abc.ABCMeta):
  """Decides which trials are not worth their end."""

  @abc.abstractmethod
  def __call__(self) -> Stopper:
    """Returns what looks at a trial while it runs."""


class BaseReward(Parameterizable, metaclass=abc.ABCMeta):
  """Makes one number of what was measured; more is better."""

  @abc.abstractmethod
  def __call__(self, metrics_dict: dict[str, float], global_step: int) -> float:
    """Returns the reward of metrics by name."""

  @property
  @abc.abstractmethod
  def used_metrics(self) -> Sequence[Metric]:
    """The metrics it is computed from."""

  @property
  def needs_train(self) -> bool:
    """Whether any of them is of training."""
    return any(metric.is_train_metric for metric in self.used_metrics)

  @property
  def needs_eval(self) -> bool:
    """Whether any of them is of evaluation."""
    return any(metric.is_eval_metric for metric in self.used_metrics)

  @property
  def needs_decode(self) -> bool:
    """Whether any of them is of decoding."""
    return any(metric.is_decode_metric for metric in self.used_metrics)


class CrossStepMetricAggregator(Parameterizable, metaclass=abc.ABCMeta):
  """Makes the metrics of a trial of those of its steps."""

  @abc.abstractmethod
  def __call__(self, metrics_across_steps: History) -> dict[str, float]:
    """Returns metrics by name from (step, metrics) in order."""


@dataclasses.dataclass
class SearchHParams:
  """How an experiment is searched: what its `search()` returns."""

  # What to try next; unset: Sweeping.
  search_algorithm: Config[BaseAlgorithm] | None = None
  # What is maximized; unset: nothing, every trial has reward 0.
  search_reward: Config[BaseReward] | None = None
  # Which trials end early; unset: none.
  early_stopping: Config[BaseEarlyStoppingPolicy] | None = None
  # Metrics of a trial from those of its steps; unset: those of its last.
  cross_step_metric_aggregator: Config[CrossStepMetricAggregator] | None = None
  # How many trials at most; `--num_trials` goes before it.
  max_num_trials: int = 1_000_000
  # Errors after which a study goes on: a type, or (type, regex of the message).
  errors_to_skip: list[ErrorToSkip] | None = None
  # Studies of a search service to learn from; there is none here.
  prior_study_ids: list[int] | None = None
  # Whether to copy their trials.
  add_prior_trials: bool = False
  # Every trial writes its configuration to its directory, whatever this says.
  add_experiment_config_to_metadata: bool = True
  # Whether a trial that is stopped early has a reward, else it is skipped.
  treats_early_stopped_trials_as_done: bool = False
  # Trials train to their end, whatever this says.
  train_to_end: bool = False
  # Constants are searched wherever they are used, whatever these say.
  enable_dataset_tuning: bool = False
  enable_partitioner_tuning: bool = False
  enable_train_programs_tuning: bool = False
  # Address of a search service; there is none here.
  vizier_service_endpoint: str | None = None
