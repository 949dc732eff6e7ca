# SPDX-License-Identifier: Apache-2.0
"""The train step: gradients, optimizer update and outputs, a pure function."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax import learners, tasks_lib, train_states
from pax.learners import clipping
from pax.steps import forward as forward_lib
from pax.steps import gradient_accumulation, max_gradients, replicas
from pax.steps.hooks import GradFnProtocol, LossFnProtocol
from pax.steps.step_settings import StepSettings
from pax.steps.step_types import Batch, StepFnOutput
from pax.train_states import Variables
from praxis import base_layer, py_utils, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def train_step(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> tuple[TrainState, StepFnOutput]:
  """Returns (new state, output) of one update.

  Args:
    settings: The task, and where it runs.
    state: The state before the update.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the job. `state.step` is folded in, so that a resumed job
      uses the same randomness.
  """
  task, axis_name = settings.task, settings.axis_name
  hparams = settings.var_weight_hparams
  (learner,) = task.learners
  key = jax.random.fold_in(key, state.step)
  with forward_lib.context(task, do_eval=False):
    outputs, grads = _differentiate(settings, state, batch, key)
    updated_vars = _update_non_trainables(
      settings, state.mdl_vars, outputs.updated_vars, grads
    )
    is_exposed = settings.hooks.expose_updated_nontrainables
    mdl_vars = updated_vars if is_exposed else state.mdl_vars
    updates, opt_state = learner.update_states(
      grads, state.opt_states[0], mdl_vars, hparams, step=state.step
    )
    mdl_vars = learner.apply_gradient(mdl_vars, updates, hparams)
    params = mdl_vars[base_layer.PARAMS]
    mdl_vars = _keep_excluded(
      settings, state.mdl_vars, {**updated_vars, base_layer.PARAMS: params}
    )
    layer_summaries = forward_lib.layer_summaries(outputs.updated_vars)
    summaries = {
      **replicas.mean_summaries(layer_summaries, axis_name),
      **base_layer.all_global_summaries(),
      **_variable_norms(settings, state.step, mdl_vars),
    }
  output = StepFnOutput(
    loss=outputs.mean_loss,
    weighted_scalars=replicas.mean_scalars(outputs.weighted_scalars, axis_name),
    per_example_out=outputs.per_example_out,
    summary_tensors=summaries,
    clu_metrics=replicas.reduce_clu_metrics(outputs.clu_metrics, axis_name),
  )
  return state.new_state(mdl_vars, [opt_state], state.extra_state), output


def _differentiate(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> tuple[forward_lib.Forward, Nested[JTensor]]:
  """Returns the results of the forward pass, and the gradients of the loss."""
  hparams, axis_name = settings.var_weight_hparams, settings.axis_name
  (learner,) = settings.task.learners
  mask = learner.bprop_mask(hparams)
  _check_learns(learner, mask)
  learned = learners.mask_tree(hparams, mask)
  _check_gradient_function(learner, learned)
  _check_not_integers(learned)
  mdl_vars = settings.task.maybe_adjust_train_state(
    state.step, state.mdl_vars, hparams, key
  )
  grad_fn = gradient_accumulation.accumulating(
    settings.hooks.grad_fn or _make_grad_fn(mask), settings, mask
  )
  (_, aux), grads = grad_fn(
    loss_fn=_make_loss_fn(settings),
    learner=learner,
    mdl_vars=mdl_vars,
    inputs=batch,
    prng_key=forward_lib.replica_key(key, axis_name),
  )
  _add_privacy_summaries(aux, axis_name)
  grads = learners.mask_tree(grads, mask)
  is_max = learners.mask_tree(max_gradients.max_gradient_mask(hparams), mask)
  trainable = learners.mask_tree(mdl_vars, mask)
  grads = max_gradients.fill_unused(grads, trainable, is_max)
  if axis_name is not None:
    total = replicas.psum(grads, axis_name)
    grads = max_gradients.reduce_over_replicas(total, grads, is_max, axis_name)
  return aux.aux_info, grads


def _check_learns(learner: learners.Learner, mask: Nested[bool]) -> None:
  if not any(jax.tree.leaves(mask)):
    raise ValueError(
      'a model that is trained must have a variable that learns, got none with'
      f' bprop_variable_exclusion={learner.bprop_variable_exclusion!r} and'
      f' bprop_variable_inclusion={learner.bprop_variable_inclusion!r}; change'
      ' them'
    )


def _check_gradient_function(
  learner: learners.Learner, learned: Variables[base_layer.WeightHParams]
) -> None:
  gradient = learner.stochastic_gradient
  if gradient is None:
    return
  name = type(gradient).__name__
  for path, hp in py_utils.tree_paths(learned):
    is_overwritten = base_layer.var_overwrite_with_gradient(hp)
    if is_overwritten and gradient.changes_gradients:
      raise ValueError(
        f'{name} clips gradients or adds noise; it needs a model without '
        f'variables that become their gradient, got {path}; set '
        "fp8_scaling='current'"
      )
    if hp.repeat_prefix and not gradient.takes_repeated_layers:
      raise ValueError(
        f'{name} needs a model without repeated or pipelined layers, got '
        f'{path}, stacked {hp.repeat_prefix}; set '
        'stacked_transformer_tpl to a StackedTransformer, or choose '
        'DpSgdStochasticGradient'
      )


def _check_not_integers(learned: Variables[base_layer.WeightHParams]) -> None:
  for path, hp in py_utils.tree_paths(learned):
    if hp.dtype and jnp.issubdtype(hp.dtype, jnp.integer):
      raise ValueError(
        f'variables that are trained must be floats, got {jnp.dtype(hp.dtype)}'
        f' of {path}; train layers of QuantizationMode.TRAINING and convert'
        ' them by --mode=quantize, or set bprop_variable_exclusion'
      )


def _make_loss_fn(settings: StepSettings) -> LossFnProtocol:
  """Returns the function from variables and batch to the loss."""
  is_max = max_gradients.max_gradient_mask(settings.var_weight_hparams)

  def loss_fn(
    mdl_vars: Variables[JTensor], inputs: Batch, prng_key: jax.Array
  ) -> tuple[JTensor, learners.GradAuxInfo]:
    outputs = forward_lib.forward(
      settings,
      max_gradients.to_fm32(mdl_vars, is_max),
      inputs,
      forward_lib.make_rngs(prng_key),
      mutable=settings.task.train.apply_mutable_list,
    )
    weight = 1.0 if outputs.loss_weight is None else outputs.loss_weight
    return outputs.weighted_loss, learners.GradAuxInfo(outputs, weight)

  return loss_fn


def _make_grad_fn(mask: Nested[bool]) -> GradFnProtocol:
  """Returns the learner's gradient function of the variables in `mask`."""

  def grad_fn(
    loss_fn: LossFnProtocol,
    learner: learners.Learner,
    mdl_vars: Variables[JTensor],
    inputs: Batch,
    prng_key: jax.Array,
  ) -> tuple[tuple[JTensor, learners.GradAuxInfo], Nested[JTensor]]:
    def loss_of_trainable(
      trainable: Variables[JTensor],
      mdl_vars_and_batch: tuple[Variables[JTensor], Batch],
      prng_key: jax.Array,
    ) -> tuple[JTensor, learners.GradAuxInfo]:
      mdl_vars, inputs = mdl_vars_and_batch
      # Gradient functions may replace leaves of `trainable`.
      mdl_vars = jax.tree.map(
        lambda is_trainable, x, fixed: x if is_trainable else fixed,
        mask,
        trainable,
        mdl_vars,
      )
      return loss_fn(mdl_vars, inputs, prng_key)

    gradient = learner.stochastic_gradient or learners.StandardGradient()
    trainable = learners.mask_tree(mdl_vars, mask)
    return gradient.grad_fn(
      loss_of_trainable, trainable, (mdl_vars, inputs), prng_key
    )

  return grad_fn


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
  settings: StepSettings,
  mdl_vars: Variables[JTensor],
  updated_vars: Variables[JTensor],
  grads: Nested[JTensor],
) -> Variables[JTensor]:
  """Returns the variables with the collections that the model updated.

  A step that the learner skips makes none non-finite: a moving average with
  one NaN would remain NaN.
  """
  hparams = settings.var_weight_hparams
  new = dict(mdl_vars)
  # Sorted: all processes must compile the same program.
  names = sorted(set(mdl_vars) & set(updated_vars) - {base_layer.PARAMS})
  for name in names:
    new[name] = replicas.sync_non_trainables(
      updated_vars[name], mdl_vars[name], hparams[name], settings.axis_name
    )
  if not jax.tree.leaves([new[name] for name in names]):
    return new
  (learner,) = settings.task.learners
  is_applied = learner.is_applied(grads, hparams)
  if is_applied is True:
    return new

  def keep_finite(updated: JTensor, old: JTensor) -> JTensor:
    if not jnp.issubdtype(updated.dtype, jnp.inexact):
      return updated
    is_valid = is_applied | jnp.all(jnp.isfinite(updated))
    return jnp.where(is_valid, updated, old)

  for name in names:
    new[name] = jax.tree.map(keep_finite, new[name], mdl_vars[name])
  return new


def _keep_excluded(
  settings: StepSettings,
  old: Variables[JTensor],
  new: Variables[JTensor],
) -> Variables[JTensor]:
  """Returns the new variables; those excluded by the learner are the old ones.

  The model may have updated non-trainable variables that are excluded by name.
  """
  (learner,) = settings.task.learners
  is_excluded = tasks_lib.get_excluded_var_mask_for_grad_or_opt(
    settings.var_weight_hparams, learner, mask_all_non_trainable=False
  )
  return jax.tree.map(
    lambda excluded, x, y: x if excluded else y, is_excluded, old, new
  )


def _variable_norms(
  settings: StepSettings, step: JTensor, mdl_vars: Variables[JTensor]
) -> dict[str, JTensor]:
  """Returns the root mean square of each variable, 0 in steps without norms."""
  if not settings.task.train.variable_norm_summary:
    return {}
  variables = py_utils.tree_paths(mdl_vars)
  if not variables:
    return {}

  def norms() -> JTensor:
    # `squared_norm` does not reshape, which would gather sharded weights.
    return jnp.stack(
      [
        jnp.sqrt(clipping.squared_norm(x) / float(max(x.size, 1)))
        for _, x in variables
      ]
    )

  if settings.variable_norm_interval == 1:
    packed = norms()
  else:
    is_due = step % jnp.uint32(settings.variable_norm_interval) == 0
    packed = jax.lax.cond(is_due, norms, lambda: jnp.zeros(len(variables)))
  suffix = base_layer.get_summary_type_suffix(base_layer.SummaryType.SCALAR)
  return {
    f'vars/{path}{suffix}': packed[i] for i, (path, _) in enumerate(variables)
  }
