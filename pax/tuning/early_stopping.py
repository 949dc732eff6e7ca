# SPDX-License-Identifier: Apache-2.0
"""Which trials are stopped before their end."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence

from pax.tuning import interfaces
from pax.tuning.metrics import Metric

_REWARD = Metric('reward')


class EarlyStoppingError(BaseException):
  """Ends a trial; a reward raises it when it has seen enough."""

  def __init__(
    self,
    skip: bool = True,
    skip_reason: str | None = None,
    step: int | None = None,
    reward: float | None = None,
    metrics: dict[str, float] | None = None,
    checkpoint_path: str | None = None,
  ):
    """Says what becomes of the trial.

    Args:
      skip: Whether nothing is learned from it.
      skip_reason: Why not.
      step: The step it ends with, unless it is skipped.
      reward: Its reward; unset: that of `metrics`.
      metrics: What is told of it.
      checkpoint_path: Where its state is, for whoever catches this.

    Raises:
      ValueError: a trial that is not skipped has no step, or nothing to tell.
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
    self.checkpoint_path = checkpoint_path


class _ByGates(interfaces.BaseEarlyStoppingPolicy):
  """Looks at a trial when it first measures at or after certain steps."""

  # What is compared; unset: the reward.
  metric: Metric | None = None
  # Whether more is better; else less.
  maximize: bool = True

  def __call__(self) -> interfaces.Stopper:
    return self._is_to_stop

  @abc.abstractmethod
  def _gates(self) -> Iterable[int]:
    """The steps, one for each rule."""

  @abc.abstractmethod
  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    """Whether a trial fails a rule, the others' values being these."""

  def _is_to_stop(
    self, history: interfaces.History, others: Sequence[interfaces.History]
  ) -> bool:
    for rule, gate in enumerate(self._gates()):
      value, is_new = self._at(gate, history)
      if is_new:
        found = [self._at(gate, other)[0] for other in others]
        known = [v for v in found if v is not None]
        if self._is_behind(rule, value, known):
          return True
    return False

  def _at(
    self, gate: int, history: interfaces.History
  ) -> tuple[float | None, bool]:
    """The first value at a gate, and whether it is the last entry's."""
    metric = self.metric or _REWARD
    for index, (step, metrics) in enumerate(history, 1):
      if step >= gate and metric.match_items(metrics):
        return metric.get_value(metrics), index == len(history)
    return None, False

  def _is_worse(self, value: float, other: float) -> bool:
    return value < other if self.maximize else value > other


class EarlyStoppingByValue(_ByGates):
  """Stops a trial that has not come far enough at a step.

  The first measurement at or after each step is the one that counts.
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

  def _gates(self) -> Iterable[int]:
    return [step for step, _ in self.step_values]

  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    return self._is_worse(value, self.step_values[rule][1])


class EarlyStoppingByRank(_ByGates):
  """Stops a trial that others are ahead of at a step.

  The first measurement of each trial at or after a step is compared with those
  that others had by then.
  """

  # (step, rank, how many others there must be): the trial of this rank among
  # the others, 1 being the best, is the one to reach. A float from 0 to 1 is
  # the share of the others that are better than that one.
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

  def _gates(self) -> Iterable[int]:
    return [step for step, _, _ in self.step_ranks]

  def _is_behind(self, rule: int, value: float, others: list[float]) -> bool:
    _, rank, enough = self.step_ranks[rule]
    if not others or len(others) < enough:
      return False
    is_share = isinstance(rank, float)
    place = int(rank * (len(others) - 1)) if is_share else rank - 1
    if place >= len(others):
      return False
    ranked = sorted(others, reverse=self.maximize)
    return self._is_worse(value, ranked[place])
