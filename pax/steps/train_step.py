# SPDX-License-Identifier: Apache-2.0
"""The train step: gradients, optimizer update and outputs, a pure function."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax import learners, tasks_lib, train_states
from pax.learners import clipping
from pax.steps import forward as forward_lib
from pax.steps import max_gradients, replicas
from pax.steps.step_types import Batch, StepOutput, make_output
from praxis import base_layer, py_utils, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def train_step(
  task: tasks_lib.SingleTask,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None = None,
) -> tuple[TrainState, StepOutput]:
  """Returns (new state, output) of one update.

  Args:
    task: The task.
    state: The state before the update.
    batch: The global batch; with `axis_name` the batch of one replica.
    key: PRNG key of the job. `state.step` is folded in, so that a resumed job
      uses the same randomness.
    var_weight_hparams: The WeightHParams of each variable in `state.mdl_vars`.
    axis_name: Mesh axis of the replicas; None for SPMD.
  """
  (learner,) = task.learners
  key = jax.random.fold_in(key, state.step)
  with forward_lib.context(task, do_eval=False):
    outputs, grads = _differentiate(
      task, state, batch, key, var_weight_hparams, axis_name
    )
    mdl_vars = _update_non_trainables(
      state.mdl_vars, outputs.updated_vars, var_weight_hparams, axis_name
    )
    updates, opt_state = learner.update_states(
      grads,
      state.opt_states[0],
      mdl_vars,
      var_weight_hparams,
      step=state.step,
    )
    mdl_vars = learner.apply_gradient(mdl_vars, updates, var_weight_hparams)
    layer_summaries = forward_lib.layer_summaries(outputs.updated_vars)
    summaries = {
      **replicas.mean_summaries(layer_summaries, axis_name),
      **base_layer.all_global_summaries(),
      **_variable_norms(task, state.step, mdl_vars),
    }
  has_examples = task.train.log_train_output_interval_steps
  output = make_output(
    outputs.mean_loss,
    replicas.mean_scalars(outputs.weighted_scalars, axis_name),
    summaries,
    outputs.per_example_out if has_examples else NestedMap(),
  )
  return state.new_state(mdl_vars, [opt_state], state.extra_state), output


def _differentiate(
  task: tasks_lib.SingleTask,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None,
) -> tuple[forward_lib.Forward, Nested[JTensor]]:
  """Returns the results of the forward pass, and the gradients of the loss."""
  (learner,) = task.learners
  mask = learner.bprop_mask(var_weight_hparams)
  trainable = learners.mask_tree(state.mdl_vars, mask)
  is_max = max_gradients.max_gradient_mask(var_weight_hparams)

  def loss_fn(
    trainable: Nested[JTensor],
    mdl_vars_and_batch: tuple[Nested[JTensor], Batch],
    replica_key: jax.Array,
  ) -> tuple[JTensor, learners.GradAuxInfo]:
    mdl_vars, batch = mdl_vars_and_batch
    # Gradient functions may replace leaves of `trainable`.
    mdl_vars = jax.tree.map(
      lambda is_trainable, x, fixed: x if is_trainable else fixed,
      mask,
      trainable,
      mdl_vars,
    )
    mdl_vars = task.maybe_adjust_train_state(
      state.step, mdl_vars, var_weight_hparams, key
    )
    outputs = forward_lib.forward(
      task,
      max_gradients.to_fm32(mdl_vars, is_max),
      batch,
      forward_lib.make_rngs(replica_key),
      var_weight_hparams=var_weight_hparams,
      mutable=task.train.apply_mutable_list,
    )
    weight = 1.0 if outputs.loss_weight is None else outputs.loss_weight
    return outputs.weighted_loss, learners.GradAuxInfo(outputs, weight)

  gradient = learner.stochastic_gradient or learners.StandardGradient()
  (_, aux), grads = gradient.grad_fn(
    loss_fn,
    trainable,
    (state.mdl_vars, batch),
    forward_lib.replica_key(key, axis_name),
  )
  _add_privacy_summaries(aux, axis_name)
  is_max = learners.mask_tree(is_max, mask)
  grads = max_gradients.fill_unused(grads, trainable, is_max)
  if axis_name is not None:
    total = replicas.psum(grads, axis_name)
    grads = max_gradients.reduce_over_replicas(total, grads, is_max, axis_name)
  return aux.aux_info, grads


def _add_privacy_summaries(
  aux: learners.GradAuxInfo, axis_name: str | None
) -> None:
  """Adds summaries of clipping and noise of a DP-SGD gradient."""
  dp_metrics = getattr(aux, 'dp_aux_info', None) or {}
  for path, x in py_utils.tree_paths(dict(dp_metrics)):
    if axis_name is not None and path == 'per_core_grad_norm':
      # The loss of each replica is divided by the number of replicas.
      path, x = f'mean_{path}', replicas.psum(x, axis_name)
    elif axis_name is not None:
      x = replicas.pmean(x, axis_name)
    base_layer.add_global_summary(f'dp_metrics/{path}', x)


def _update_non_trainables(
  mdl_vars: Nested[JTensor],
  updated_vars: dict[str, Nested[JTensor]],
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None,
) -> dict[str, Nested[JTensor]]:
  """Returns the variables with the collections that the model updated."""
  new = dict(mdl_vars)
  for name in set(mdl_vars) & set(updated_vars) - {base_layer.PARAMS}:
    new[name] = replicas.sync_non_trainables(
      updated_vars[name], mdl_vars[name], var_weight_hparams[name], axis_name
    )
  return new


def _variable_norms(
  task: tasks_lib.SingleTask, step: JTensor, mdl_vars: Nested[JTensor]
) -> dict[str, JTensor]:
  """Returns the norm of each parameter at summary steps, otherwise 0."""
  if not task.train.variable_norm_summary:
    return {}
  leaves = jax.tree_util.tree_flatten_with_path(mdl_vars[base_layer.PARAMS])[0]
  values = [value for _, value in leaves]

  def norms() -> JTensor:
    # `squared_norm` does not reshape, which would gather sharded weights.
    return jnp.sqrt(jnp.stack([clipping.squared_norm(v) for v in values]))

  interval = jnp.uint32(task.train.summary_interval_steps)
  is_due = step % interval == 0
  packed = jax.lax.cond(is_due, norms, lambda: jnp.zeros(len(values)))
  suffix = base_layer.get_summary_type_suffix(base_layer.SummaryType.SCALAR)
  paths = [
    jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in leaves
  ]
  return {
    f'vars/{path}/norm{suffix}': packed[i] for i, path in enumerate(paths)
  }
