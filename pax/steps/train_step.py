# SPDX-License-Identifier: Apache-2.0
"""One step of training: a pure function, whatever devices it runs on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pax import learners, tasks_lib, train_states
from pax.learners import clipping
from pax.steps import forward as forward_lib
from pax.steps import max_gradients, replicas
from pax.steps.step_types import StepOutput, make_output
from praxis import base_layer, py_utils, pytypes

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
    passed, grads = _differentiate(
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
    passed.mean_loss,
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
) -> tuple[forward_lib.Forward, Nested[JTensor]]:
  """Returns all that the forward pass computed, and the loss's gradient."""
  (learner,) = task.learners
  mask = learner.bprop_mask(var_weight_hparams)
  learned = learners.mask_tree(state.mdl_vars, mask)
  takes_largest = max_gradients.flagged(var_weight_hparams)

  def loss_fn(
    learned: Nested[JTensor],
    others_and_batch: tuple[Nested[JTensor], NestedMap],
    replica_key: jax.Array,
  ) -> tuple[JTensor, learners.GradAuxInfo]:
    others, batch = others_and_batch
    # A gradient function may put something else in the place of a leaf.
    mdl_vars = jax.tree.map(
      lambda keep, mine, other: mine if keep else other, mask, learned, others
    )
    mdl_vars = task.maybe_adjust_train_state(
      state.step, mdl_vars, var_weight_hparams, key
    )
    passed = forward_lib.forward(
      task,
      max_gradients.as_maximums(mdl_vars, takes_largest),
      batch,
      forward_lib.make_rngs(replica_key),
      var_weight_hparams=var_weight_hparams,
      mutable=task.train.apply_mutable_list,
    )
    weight = 1.0 if passed.loss_weight is None else passed.loss_weight
    return passed.weighted_loss, learners.GradAuxInfo(passed, weight)

  gradient = learner.stochastic_gradient or learners.StandardGradient()
  (_, aux), grads = gradient.grad_fn(
    loss_fn,
    learned,
    (state.mdl_vars, batch),
    forward_lib.replica_key(key, axis_name),
  )
  _report_privacy(aux, axis_name)
  takes_largest = learners.mask_tree(takes_largest, mask)
  grads = max_gradients.settled(grads, learned, takes_largest)
  if axis_name is not None:
    total = replicas.psum(grads, axis_name)
    grads = max_gradients.over_replicas(total, grads, takes_largest, axis_name)
  return aux.aux_info, grads


def _report_privacy(aux: learners.GradAuxInfo, axis_name: str | None) -> None:
  """Records what a private gradient clipped, and the noise it added."""
  reported = getattr(aux, 'dp_aux_info', None) or {}
  for path, x in py_utils.tree_paths(dict(reported)):
    if axis_name is not None and path == 'per_core_grad_norm':
      # Each is of a loss that is scaled down by the number of replicas.
      path, x = f'mean_{path}', replicas.psum(x, axis_name)
    elif axis_name is not None:
      x = replicas.pmean(x, axis_name)
    base_layer.add_global_summary(f'dp_metrics/{path}', x)


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
    # Not by a reshape, which would gather weights that are split.
    return jnp.sqrt(jnp.stack([clipping.squared_norm(v) for v in values]))

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
