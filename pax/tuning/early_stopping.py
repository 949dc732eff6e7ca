# SPDX-License-Identifier: Apache-2.0
"""Which trials are stopped before their end."""

from __future__ import annotations

from pax.tuning import interfaces
from pax.tuning.metrics import Metric

_REWARD = Metric('reward')


class EarlyStoppingByValue(interfaces.BaseEarlyStoppingPolicy):
  """Stops a trial that has not come far enough at a step.

  The first measurement at or after each step is the one that counts.
  """

  # (step, threshold) pairs.
  step_values: list[tuple[int, float]] | None = None
  # What is compared; unset: the reward.
  metric: Metric | None = None
  # Whether values below the threshold are stopped; else those above it.
  maximize: bool = True

  def __post_init__(self):
    super().__post_init__()
    if not self.step_values:
      raise ValueError(
        'step_values must be a list such as [(100, 0.5)], got'
        f' {self.step_values}'
      )

  def __call__(self) -> interfaces.Stopper:
    return self._is_behind

  def _is_behind(self, history: interfaces.History) -> bool:
    metric, sign = self.metric or _REWARD, 1 if self.maximize else -1
    for gate, threshold in self.step_values:
      reached = (metrics for step, metrics in history if step >= gate)
      metrics = next(reached, None)
      if metrics and sign * metric.get_value(metrics) < sign * threshold:
        return True
    return False
