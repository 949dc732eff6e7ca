# SPDX-License-Identifier: Apache-2.0
"""One step of decoding: what a model generates for a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pax import tasks_lib, train_states
from pax.steps import forward as forward_lib
from pax.steps import replicas
from pax.steps.outputs import StepOutput, make_output
from praxis import py_utils, pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def decode_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: NestedMap,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[Any],
  axis_name: str | None = None,
) -> StepOutput:
  """Returns what `model.decode` gives for a batch; see `train_step` for Args.

  The loss is 0. What tells an example from others among the inputs is put
  beside its outputs.
  """
  key = jax.random.fold_in(key, state.step)
  mdl_vars, batch = forward_lib.as_computed(
    task, state.mdl_vars, batch, var_weight_hparams
  )
  origins, batch = py_utils.filter_by_matching_keys(
    batch, [py_utils.PROVENANCE_PREFIX]
  )
  with forward_lib.context(task, do_eval=True):
    (scalars, rows, *further), updated_vars = task.model.apply(
      mdl_vars,
      batch,
      method='decode',
      mutable=list(task.decode.apply_mutable_list),
      rngs=forward_lib.make_rngs(key, axis_name),
    )
  for metrics in further:
    scalars = {**scalars, **metrics}
  summaries = forward_lib.layer_summaries(updated_vars)
  return make_output(
    jnp.zeros([], jnp.float32),
    replicas.mean_scalars(forward_lib.float32_pairs(scalars), axis_name),
    replicas.mean_summaries(summaries, axis_name),
    NestedMap({**rows, **origins}),
  )
