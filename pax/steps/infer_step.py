# SPDX-License-Identifier: Apache-2.0
"""One step of inference: what a task's inference runner makes of a batch."""

from __future__ import annotations

from typing import Any

import jax

from pax import tasks_lib, train_states
from pax.steps import forward as forward_lib
from praxis import pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def infer_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: NestedMap,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[Any],
  axis_name: str | None = None,
) -> NestedMap:
  """Returns one row of outputs per example; see `train_step` for Args."""
  key = forward_lib.replica_key(key, axis_name)
  with forward_lib.context(task, do_eval=True):
    return task.inference_runner.infer(state, key, var_weight_hparams, batch)
