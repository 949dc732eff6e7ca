# SPDX-License-Identifier: Apache-2.0
"""Early stopping of trials, by value and by rank."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Sequence

from pax.tuning import interfaces
from pax.tuning.metrics import Metric

_REWARD = Metric('reward')


class EarlyStoppingError(BaseException):
  """Ends a trial early; raised by a reward."""

  def __init__(
    self,
    skip: bool = True,
    skip_reason: str | None = None,
    step: int | None = None,
    reward: float | None = None,
    metrics: dict[str, float] | None = None,
    checkpoint_path: str | None = None,
  ):
    """Describes the result of the trial.

    Args:
      skip: Whether the trial is skipped: it has no reward.
      skip_reason: The reason, for the report.
      step: Last step of the trial; required unless it is skipped.
      reward: Its reward; None computes it from `metrics`.
      metrics: Metrics by name.
      checkpoint_path: Its checkpoint, for handlers of the exception.

    Raises:
      ValueError: a trial that is not skipped has no step, or neither reward nor
        metrics.
    """
    if not skip and (step is None or (reward is None and metrics is None)):
      raise ValueError(
        'a trial that is not skipped wants a step and a reward or metrics, got'
        f' step={step}, reward={reward}, metrics={metrics}'
      )
    super().__init__(skip_reason or 'stopped early')
    self.skip = skip
    self.skip_reason = skip_reason
    self.step = step
    self.reward = reward
    self.metrics = metrics
    self.checkpoint = checkpoint_path


class _StepRules(interfaces.BaseEarlyStoppingPolicy):
  """Rules that apply to the first metrics of a trial at or after a step.

  NaN is worse than all numbers.
  """

  # The metric to compare; None: the reward.
  metric: Metric | None = None
  # Whether larger values are better.
  maximize: bool = True

  def __call__(self) -> interfaces.Stopper:
    return self._should_stop

  @abc.abstractmethod
  def _steps(self) -> Iterable[int]:
    """The step of each rule."""

  @abc.abstractmethod
  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    """Whether a trial of this value fails a rule.

    Args:
      rule: index of the rule.
      value: of the trial; larger is better.
      others: those of the other trials.
    """

  def _should_stop(
    self, history: interfaces.History, others: Sequence[interfaces.History]
  ) -> bool:
    for rule, step in enumerate(self._steps()):
      value, is_new = self._value_at(step, history)
      if is_new and value is not None:
        values = [self._value_at(step, other)[0] for other in others]
        known = [self._goodness(v) for v in values if v is not None]
        if self._is_behind(rule, self._goodness(value), known):
          return True
    return False

  def _value_at(
    self, min_step: int, history: interfaces.History
  ) -> tuple[float | None, bool]:
    """The first value from `min_step` on, and whether it is the newest."""
    metric = self.metric or _REWARD
    for index, (step, metrics) in enumerate(history, 1):
      if step >= min_step and metric.match_items(metrics):
        return metric.get_value(metrics), index == len(history)
    return None, False

  def _goodness(self, value: float) -> float:
    """A number that is larger for better values."""
    if math.isnan(value):
      return -math.inf
    return value if self.maximize else -value


class EarlyStoppingByValue(_StepRules):
  """Stops a trial whose metric misses a threshold at a step.

  The first value at or after each step counts.
  """

  # (step, threshold) pairs.
  step_values: list[tuple[int, float]] | None = None

  def __post_init__(self):
    super().__post_init__()
    if not self.step_values:
      raise ValueError(
        'step_values must be a list such as [(100, 0.5)], got'
        f' {self.step_values}'
      )
    self._rules = self.step_values

  def _steps(self) -> Iterable[int]:
    return [step for step, _ in self._rules]

  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    return value < self._goodness(self._rules[rule][1])


class EarlyStoppingByRank(_StepRules):
  """Stops a trial whose metric ranks too low among the other trials at a step.

  The first value of each trial at or after the step counts.
  """

  # (step, rank, minimum number of other trials): the threshold is the value of
  # the other trial of this rank, 1 for the best. A float from 0 to 1 is the
  # fraction of the other trials that are better than the threshold.
  step_ranks: list[tuple[int, int | float, int]] | None = None

  def __post_init__(self):
    super().__post_init__()
    if not self.step_ranks:
      raise ValueError(
        'step_ranks must be a list such as [(100, 0.5, 8)], got'
        f' {self.step_ranks}'
      )
    for entry in self.step_ranks:
      rank = entry[1] if len(entry) == 3 else None
      is_share = isinstance(rank, float) and 0 <= rank <= 1
      if not (is_share or (isinstance(rank, int) and rank > 0)):
        raise ValueError(
          'step_ranks must be (step, rank from 1 or share of 1.0, number of'
          f' others), got {entry!r}'
        )
    self._rules = self.step_ranks

  def _steps(self) -> Iterable[int]:
    return [step for step, _, _ in self._rules]

  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    _, rank, min_others = self._rules[rule]
    if not others or len(others) < min_others:
      return False
    if isinstance(rank, float):
      index = int(rank * (len(others) - 1))
    else:
      index = rank - 1
    if index >= len(others):
      return False
    return value < sorted(others, reverse=True)[index]
