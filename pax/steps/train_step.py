# SPDX-License-Identifier: Apache-2.0
"""One step of training: a pure function, whatever devices it runs on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pax import learners, tasks_lib, train_states
from pax.steps import forward as forward_lib
from pax.steps import largest, replicas
from pax.steps.outputs import StepOutput, make_output
from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def train_step(
  task: tasks_lib.SingleTask,
  state: TrainState,
  batch: NestedMap,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[Any],
  axis_name: str | None = None,
) -> tuple[TrainState, StepOutput]:
  """Returns the state after one update, and what was computed for it.

  Args:
    task: What is trained.
    state: The state before the update.
    batch: The whole batch; with `axis_name` that of one replica.
    key: The key of the run. The step is folded in here, so that a run which
      was restarted draws what it would have drawn.
    var_weight_hparams: The WeightHParams of each of `state.mdl_vars`.
    axis_name: Mesh axis of the replicas, None for one program over all.
  """
  (learner,) = task.learners
  key = jax.random.fold_in(key, state.step)
  with forward_lib.context(task, do_eval=False):
    loss, passed, grads = _differentiate(
      task, state, batch, key, var_weight_hparams, axis_name
    )
    mdl_vars = _with_updates(
      state.mdl_vars, passed.updated_vars, var_weight_hparams, axis_name
    )
    updates, opt_state = learner.update_states(
      grads,
      state.opt_states[0],
      mdl_vars,
      var_weight_hparams,
      step=state.step,
    )
    mdl_vars = learner.apply_gradient(mdl_vars, updates, var_weight_hparams)
    layer_summaries = forward_lib.layer_summaries(passed.updated_vars)
    summaries = {
      **replicas.mean_summaries(layer_summaries, axis_name),
      **base_layer.all_global_summaries(),
      **_variable_norms(task, state.step, mdl_vars),
    }
  wants_examples = task.train.log_train_output_interval_steps
  output = make_output(
    loss,
    replicas.mean_scalars(passed.weighted_scalars, axis_name),
    summaries,
    passed.per_example_out if wants_examples else NestedMap(),
  )
  return state.new_state(mdl_vars, [opt_state], state.extra_state), output


def _differentiate(
  task: tasks_lib.SingleTask,
  state: TrainState,
  batch: NestedMap,
  key: jax.Array,
  var_weight_hparams: Nested[Any],
  axis_name: str | None,
) -> tuple[JTensor, forward_lib.Forward, Nested[JTensor]]:
  """Returns the mean loss, all that was computed with it, and its gradient."""
  (learner,) = task.learners
  rngs = forward_lib.make_rngs(key, axis_name)
  mask = learner.bprop_mask(var_weight_hparams)
  learned = learners.mask_tree(state.mdl_vars, mask)
  takes_largest = largest.flagged(var_weight_hparams)

  def loss_fn(learned: Nested[JTensor]) -> tuple[JTensor, forward_lib.Forward]:
    mdl_vars = learners.merge_tree(learned, state.mdl_vars)
    mdl_vars = task.maybe_adjust_train_state(
      state.step, mdl_vars, var_weight_hparams, key
    )
    passed = forward_lib.forward(
      task,
      largest.as_maximums(mdl_vars, takes_largest),
      batch,
      rngs,
      var_weight_hparams=var_weight_hparams,
      mutable=task.train.apply_mutable_list,
    )
    if axis_name is None:
      return passed.mean_loss, passed
    return passed.mean_loss * passed.loss_weight, passed

  (loss, passed), grads = jax.value_and_grad(loss_fn, has_aux=True)(learned)
  takes_largest = learners.mask_tree(takes_largest, mask)
  grads = largest.settled(grads, learned, takes_largest)
  if axis_name is not None:
    loss, weight = replicas.mean_loss(loss, passed.loss_weight, axis_name)
    means = jax.tree.map(
      lambda grad: (grad / weight).astype(grad.dtype),
      replicas.psum(grads, axis_name),
    )
    grads = largest.over_replicas(means, grads, takes_largest, axis_name)
  return loss, passed, grads


def _with_updates(
  mdl_vars: Nested[JTensor],
  updated_vars: dict[str, Any],
  var_weight_hparams: Nested[Any],
  axis_name: str | None,
) -> dict[str, Any]:
  """Returns the variables, those collections that the model wrote renewed."""
  new = dict(mdl_vars)
  for name in set(mdl_vars) & set(updated_vars) - {base_layer.PARAMS}:
    new[name] = replicas.sync_non_trainables(
      updated_vars[name], mdl_vars[name], var_weight_hparams[name], axis_name
    )
  return new


def _variable_norms(
  task: tasks_lib.SingleTask, step: JTensor, mdl_vars: Nested[JTensor]
) -> dict[str, JTensor]:
  """Returns the norm of each parameter on steps with a summary, else 0."""
  if not task.train.variable_norm_summary:
    return {}
  leaves = jax.tree_util.tree_flatten_with_path(mdl_vars[base_layer.PARAMS])[0]
  values = [value for _, value in leaves]

  def norms() -> JTensor:
    return jnp.stack(
      [jnp.linalg.norm(v.astype(jnp.float32).ravel()) for v in values]
    )

  interval = jnp.uint32(task.train.summary_interval_steps)
  due = step % interval == 0
  packed = jax.lax.cond(due, norms, lambda: jnp.zeros(len(values)))
  suffix = base_layer.get_summary_type_suffix(base_layer.SummaryType.SCALAR)
  paths = [
    jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in leaves
  ]
  return {
    f'vars/{path}/norm{suffix}': packed[i] for i, path in enumerate(paths)
  }
