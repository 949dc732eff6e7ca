# SPDX-License-Identifier: Apache-2.0
"""Ends training when the held-out text is predicted well enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from praxis import base_hyperparams

_METRIC = 'eval_test_C4Validation/metrics/log_pplx'


class EarlyStoppingFn(base_hyperparams.FiddleBaseParameterizable):
  """Stops once C4's validation set has at most this log-perplexity."""

  # Per token, in nats; None never stops.
  target_log_pplx: float | None = None

  def __call__(
    self,
    metrics: Mapping[str, float],
    running_mode: Any,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: str,
  ) -> bool:
    """Whether to stop; other arguments than the metrics do not matter."""
    del running_mode, global_step, is_last_ckpt, checkpoint_path
    if self.target_log_pplx is None or _METRIC not in metrics:
      return False
    return metrics[_METRIC] <= self.target_log_pplx
