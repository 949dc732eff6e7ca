# SPDX-License-Identifier: Apache-2.0
"""What a step returns beside the new state."""

from __future__ import annotations

import dataclasses

import jax

from praxis import pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutput:
  """Results of one step, over the batches of all devices.

  Nothing here is fetched to the host by the step; `jax.device_get` fetches it
  all at once when it is wanted.
  """

  # The loss that was differentiated: float32 scalar.
  loss: JTensor
  # Name -> (value, weight): scalars.
  weighted_scalars: NestedMap
  # One row per example. Empty in training, unless
  # `task.train.log_train_output_interval_steps` asks for it.
  per_example_out: NestedMap
  # Summaries by path, ending in the suffix of their SummaryType.
  summary_tensors: dict[str, JTensor]
