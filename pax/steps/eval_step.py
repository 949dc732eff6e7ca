# SPDX-License-Identifier: Apache-2.0
"""One step of evaluation: the forward pass of training without its update."""

from __future__ import annotations

from typing import Any

import jax

from pax import tasks_lib, train_states
from pax.steps import forward as forward_lib
from pax.steps import replicas
from pax.steps.outputs import StepOutput, make_output
from praxis import pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def eval_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: NestedMap,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[Any],
  axis_name: str | None = None,
) -> StepOutput:
  """Returns the metrics of the model on a batch; see `train_step` for Args."""
  key = jax.random.fold_in(key, state.step)
  with forward_lib.context(task, do_eval=True):
    passed = forward_lib.forward(
      task,
      state.mdl_vars,
      batch,
      forward_lib.make_rngs(key, axis_name),
      var_weight_hparams=var_weight_hparams,
      mutable=task.evaluate.apply_mutable_list,
    )
  summaries = forward_lib.layer_summaries(passed.updated_vars)
  return make_output(
    passed.mean_loss,
    replicas.mean_scalars(passed.weighted_scalars, axis_name),
    replicas.mean_summaries(summaries, axis_name),
    passed.per_example_out,
  )
