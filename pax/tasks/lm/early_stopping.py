# SPDX-License-Identifier: Apache-2.0
"""Early stopping of language models on C4 at a target log-perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from praxis import base_hyperparams

_METRIC = 'eval_test_C4Validation/metrics/log_pplx'


class EarlyStoppingFn(base_hyperparams.FiddleBaseParameterizable):
  """Stops when the log-perplexity on C4's validation set is at the target."""

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
    """Returns whether to stop; reads only the metrics."""
    del running_mode, global_step, is_last_ckpt, checkpoint_path
    if self.target_log_pplx is None or _METRIC not in metrics:
      return False
    return metrics[_METRIC] <= self.target_log_pplx
