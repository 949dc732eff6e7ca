# SPDX-License-Identifier: Apache-2.0
"""The gradient of a batch as a sum over microbatches, one at a time in memory.

Losses and metrics are those of the whole batch: means are weighted, such as by
tokens. Variables that a model updates combine as over replicas.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pax import base_metrics, learners
from pax.steps import forward as forward_lib
from pax.steps import max_gradients, replicas
from pax.steps.hooks import GradFnProtocol, LossFnProtocol
from pax.steps.step_settings import StepSettings
from pax.steps.step_types import is_scalar_summary
from pax.train_states import Variables
from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
_TreeT = TypeVar('_TreeT')
_NAME = 'task.train.gradient_accumulation_steps'


def accumulating(
  grad_fn: GradFnProtocol, settings: StepSettings, mask: Nested[bool]
) -> GradFnProtocol:
  """Returns a gradient function that divides the batch.

  Args:
    grad_fn: The gradient function of a microbatch.
    settings: The task; its `train.gradient_accumulation_steps` is the number of
      microbatches.
    mask: The variables that learn.

  Raises:
    ValueError: The gradient or the loss is not a sum over examples.
  """
  if settings.task.train.gradient_accumulation_steps == 1:
    return grad_fn
  _check_is_sum(settings)
  return _Accumulation(grad_fn=grad_fn, settings=settings, mask=mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Accumulation:
  """A gradient function that adds up those of microbatches."""

  grad_fn: GradFnProtocol
  settings: StepSettings
  mask: Nested[bool]

  def __call__(
    self,
    loss_fn: LossFnProtocol,
    learner: learners.Learner,
    mdl_vars: Variables[JTensor],
    inputs: NestedMap,
    prng_key: jax.Array,
  ) -> tuple[tuple[Float[Array, ''], learners.GradAuxInfo], Nested[JTensor]]:
    """Returns ((loss, auxiliary outputs), gradients) of a batch."""
    settings = self.settings
    num_microbatches = settings.task.train.gradient_accumulation_steps
    learned = learners.mask_tree(mdl_vars, self.mask)

    def add(
      total: Nested[JTensor], xs: tuple[NestedMap, jax.Array]
    ) -> tuple[Nested[JTensor], tuple[forward_lib.Forward, JTensor]]:
      batch, key = xs
      (_, aux), grads = self.grad_fn(
        loss_fn=loss_fn,
        learner=learner,
        mdl_vars=mdl_vars,
        inputs=batch,
        prng_key=key,
      )
      weight = _loss_weight(settings, aux.aux_info)
      return self._add(total, grads, weight), (aux.aux_info, weight)

    total, (outputs, weights) = jax.lax.scan(
      add,
      jax.tree.map(_initial, self._is_max, learned),
      (
        _split(inputs, num_microbatches),
        jax.random.split(prng_key, num_microbatches),
      ),
    )
    scale = 1.0 / jnp.maximum(weights.sum(), base_metrics.MIN_WEIGHT)
    grads = jax.tree.map(
      lambda use_max, sums, x: (
        sums if use_max else (sums * scale).astype(x.dtype)
      ),
      self._is_max,
      total,
      learned,
    )
    combined = _combine(settings, mdl_vars, outputs, weights * scale)
    return (combined.weighted_loss, learners.GradAuxInfo(combined)), grads

  @functools.cached_property
  def _is_max(self) -> Nested[bool]:
    """Which variables combine their gradients by maximum."""
    is_max = max_gradients.max_gradient_mask(self.settings.var_weight_hparams)
    return learners.mask_tree(is_max, self.mask)

  def _add(
    self,
    total: Nested[JTensor],
    grads: Nested[JTensor],
    weight: Float[Array, ''],
  ) -> Nested[JTensor]:
    return jax.tree.map(
      lambda use_max, sums, grad: (
        jnp.maximum(sums, grad) if use_max else sums + weight * grad
      ),
      self._is_max,
      total,
      learners.mask_tree(grads, self.mask),
    )


def _check_is_sum(settings: StepSettings) -> None:
  task = settings.task
  (learner,) = task.learners
  gradient = learner.stochastic_gradient
  if gradient is not None and gradient.changes_gradients:
    raise ValueError(
      f'{_NAME} must be 1 with {type(gradient).__name__}, which clips gradients'
      f' or adds noise, got {task.train.gradient_accumulation_steps}; its'
      ' inner_batch_size bounds the memory, where it has one'
    )
  if len(task.loss_aggregator_inst.summed_names) != 1:
    raise ValueError(
      f'{_NAME} must be 1 with {type(task.loss_aggregator_inst).__name__},'
      ' whose loss has no weight of its own, got'
      f' {task.train.gradient_accumulation_steps}; minimize one weighted scalar'
    )


def _split(inputs: _TreeT, num_microbatches: int) -> _TreeT:
  """Returns arrays [B, ...] as [num_microbatches, B / num_microbatches, ...].

  A microbatch has each `num_microbatches`-th row, so that all devices have rows
  of it.

  Raises:
    ValueError: B is not a multiple, or an array has no rows.
  """

  def split(x: JTensor) -> JTensor:
    if x.ndim == 0 or x.shape[0] % num_microbatches:
      raise ValueError(
        f'{_NAME} must divide the rows of a batch, got {num_microbatches} and'
        f' an array of shape {list(x.shape)}; change it, or the batch size'
      )
    rows = x.reshape(-1, num_microbatches, *x.shape[1:])
    return jnp.moveaxis(rows, 1, 0)

  return jax.tree.map(split, inputs)


def _join(x: JTensor) -> JTensor:
  """Returns the rows of microbatches in the order of the batch."""
  if x.ndim == 1:
    # No array of rows.
    return x[0]
  return jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])


def _initial(use_max: bool, x: JTensor) -> JTensor:
  """Returns the sum, or the maximum, of no gradients of a variable."""
  if use_max:
    return jnp.full_like(x, -jnp.inf)
  return jnp.zeros_like(x, jnp.promote_types(x.dtype, jnp.float32))


def _loss_weight(
  settings: StepSettings, outputs: forward_lib.Forward
) -> Float[Array, '']:
  """Returns the weight of the loss of a microbatch, over all replicas."""
  (name,) = settings.task.loss_aggregator_inst.summed_names
  weight = jax.lax.stop_gradient(outputs.weighted_scalars[name][1])
  if settings.axis_name is None:
    return weight
  return replicas.psum(weight, settings.axis_name)


def _combine(
  settings: StepSettings,
  mdl_vars: Variables[JTensor],
  outputs: forward_lib.Forward,
  shares: Float[Array, ' N'],
) -> forward_lib.Forward:
  """Returns the outputs of the batch.

  Args:
    settings: The task.
    mdl_vars: The variables before the step.
    outputs: Those of the N microbatches, stacked.
    shares: Of the microbatches in the weight of the loss.
  """
  return dataclasses.replace(
    outputs,
    weighted_loss=jnp.sum(outputs.weighted_loss * shares),
    mean_loss=jnp.sum(outputs.mean_loss * shares),
    # Read by gradient functions only, which have run.
    loss_weight=None,
    weighted_scalars=NestedMap(
      {
        name: _weighted_mean(*pair)
        for name, pair in outputs.weighted_scalars.items()
      }
    ),
    clu_metrics={
      name: metric.reduce() for name, metric in outputs.clu_metrics.items()
    },
    per_example_out=jax.tree.map(_join, outputs.per_example_out),
    updated_vars=_combine_variables(settings, mdl_vars, outputs.updated_vars),
  )


def _weighted_mean(
  values: Float[Array, 'N ...'], weights: Float[Array, ' N']
) -> tuple[Float[Array, '...'], Float[Array, '']]:
  """Returns the weighted mean and the sum of the weights.

  A mean that is no number is refused with the name of the metric later.
  """
  weight = weights.sum()
  total = jnp.sum(jax.vmap(jnp.multiply)(values, weights), axis=0)
  return total / jnp.maximum(weight, base_metrics.MIN_WEIGHT), weight


def _combine_variables(
  settings: StepSettings,
  mdl_vars: Variables[JTensor],
  updated: Mapping[str, Nested[JTensor]],
) -> dict[str, Nested[JTensor]]:
  """Returns collections of variables that all microbatches have updated."""
  combined = {}
  for name, of_microbatches in updated.items():
    if name == base_layer.SUMMARIES:
      combined[name] = jax.tree_util.tree_map_with_path(
        _combine_summary, of_microbatches
      )
    elif name in mdl_vars and name != base_layer.PARAMS:
      combined[name] = jax.tree.map(
        functools.partial(
          replicas.combine_non_trainable,
          mean=lambda x: x.mean(axis=0),
          total=lambda x: x.sum(axis=0),
        ),
        settings.var_weight_hparams[name],
        of_microbatches,
        mdl_vars[name],
      )
  return combined


def _combine_summary(path: tuple[Any, ...], x: JTensor) -> JTensor:
  """Returns the mean of numbers; of other summaries those of a microbatch."""
  keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
  is_number = jnp.issubdtype(x.dtype, jnp.floating)
  if keys and is_number and is_scalar_summary(str(keys[-1])):
    return x.mean(axis=0)
  return x[0]
