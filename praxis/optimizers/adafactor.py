# SPDX-License-Identifier: Apache-2.0
"""Adafactor (arXiv:1804.04235): factored second moments, quantized momentum."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, py_utils, value_domains
from praxis.optimizers import (
  base_optimizer,
  masked_trees,
  quantized_moments,
  regularization,
  sharded_transforms,
  update_math,
)
from praxis.optimizers.adafactor_state import (
  ShardedAdafactorState,
  Slot,
  pack,
  unpack,
)
from praxis.pytypes import JTensor, Nested

_Hparams = Nested[base_layer.WeightHParams]

# Names of the summaries of a variable.
_SUMMARY_NAMES = (
  'fraction_zero_grad',
  'sharded_adafactor_decay_rate',
  'sharded_adafactor_learning',
  'sharded_adafactor_learning_after_clipping',
  'sharded_adafactor_clipping_denom',
  'sharded_adafactor_parameter_scale',
  'sharded_adafactor_update_scale',
)


class ShardedAdafactor(base_optimizer.BaseOptimizer):
  """Adafactor, sharded like the variables it updates.

  The update is g / sqrt(v), clipped to an RMS of clip_threshold, times the
  learning rate, then averaged over time with beta1. The second moment v of
  variables with two or more dimensions is the product of two vectors. Stacked
  variables need prefix vectorization, which clips each layer separately.

  References:
    Shazeer and Stern, algorithms 4 and 5, https://arxiv.org/abs/1804.04235
  """

  # Subtracts lr * weight * w, outside the momentum. A dict maps regular
  # expressions, matched at the start of the variable's path, to weights; the
  # last one that matches counts.
  weight_decay: float | dict[str, float] | None = None
  # Scales the update of a variable, with weight_decay, to the norm of the
  # variable, except for paths that match one of the expressions.
  layerwise_adaptation: bool = False
  exclude_from_layerwise_adaptation: str | list[str] | None = None
  # Decay of the second moment: 'adam': Adam's bias-corrected decay_adam; 'pow':
  # 1 - (t + 1)^-decay_pow. An update needs a value above 0 for its method.
  decay_method: Literal['adam', 'pow', ''] = ''
  decay_adam: float = 0.0
  decay_pow: float = 0.0
  # Decay of the first moment; 0: no first moment.
  beta1: float = value_domains.field(0.0, ge=0.0, lt=1.0)
  # Maximum RMS of the update of a variable; None or 0: no clipping.
  clip_threshold: float | None = 1.0
  # Factors the second moment over the last two dimensions.
  factored: bool = True
  # Added to the squared gradient.
  epsilon1_grad_sq_reg: float = 1e-30
  # Storage of the first moment: 'int8', 'bfloat16' or 'float32'.
  quantized_dtype: str = 'int8'
  # Excludes variables with SKIP_LP_REGULARIZATION from weight_decay.
  respect_skip_lp_regularization: bool = False
  # Whether to write summaries for each variable, such as
  # <name>/fraction_zero_grad/<variable>.
  per_var_learning_summary: bool = False
  # Factors over the two largest dimensions if both have at least
  # min_dim_size_to_factor elements.
  sort_factored_second_moment_dims: bool = False
  min_dim_size_to_factor: int = 128
  # Multiplies the update by max(RMS(w), epsilon2_param_scale_reg).
  multiply_by_parameter_scale: bool = False
  epsilon2_param_scale_reg: float = 1e-3
  # Replaces infinite gradients by NaN, for which the learner skips the step.
  maybe_inf_to_nan: bool = True

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.decay_method not in ('adam', 'pow'):
      raise ValueError(
        "ShardedAdafactor.decay_method must be 'adam' or 'pow', got"
        f' {self.decay_method!r}'
      )
    if not 0.0 <= self.decay_adam < 1.0:
      raise ValueError(
        f'ShardedAdafactor.decay_adam must be in [0, 1), got {self.decay_adam}'
      )
    if self.decay_pow < 0.0:
      raise ValueError(
        f'ShardedAdafactor.decay_pow must be >= 0, got {self.decay_pow}'
      )
    self.quantized_dtype = jnp.dtype(self.quantized_dtype).name
    quantized_moments.check_dtype(self.quantized_dtype)

  @classmethod
  def HParamsAdamB(
    cls, **kwargs: object
  ) -> pax_fiddle.Config[ShardedAdafactor]:
    """Returns a Config that behaves like Adam with beta2 = 0.98."""
    preset = cls.config(
      beta1=0.9, decay_method='adam', decay_adam=0.98, quantized_dtype='int8'
    )
    return preset.set(**kwargs)

  def _get_raw_grad_transformation(
    self, learning_rate_fn: sharded_transforms.LearningRateFn
  ) -> sharded_transforms.GradientTransformation:
    var_weight_hparams = self._var_weight_hparams

    def init(params: Nested[JTensor]) -> ShardedAdafactorState:
      leaves, tree = jax.tree.flatten(params)
      count = jnp.zeros([], jnp.int32)
      slots = [self._init_slot(w) for w in leaves]
      summaries = self._initial_summaries(leaves, lambda: jnp.zeros([]))
      return pack(tree, count, slots, summaries)

    def update(
      grads: Nested[JTensor],
      state: ShardedAdafactorState,
      params: Nested[JTensor] | None = None,
    ) -> tuple[Nested[JTensor], ShardedAdafactorState]:
      if params is None:
        raise ValueError(
          'ShardedAdafactor needs the variables; pass params to update'
        )
      tree: Any
      leaves, tree = jax.tree.flatten(grads)
      lr = learning_rate_fn(state.count)
      decay = self._second_moment_decay(state.count)
      weights = self._weight_decays(grads, var_weight_hparams)
      names = [name for name, _ in py_utils.tree_paths(grads)]
      updates, slots, summaries = [], [], []
      for i, (g, w, slot) in enumerate(
        zip(
          leaves,
          tree.flatten_up_to(params),
          unpack(tree, state),
          strict=True,
        )
      ):
        step, slot, statistics = self._update_leaf(g, w, slot, lr, decay)
        scale = statistics['sharded_adafactor_update_scale']
        step = step + (lr * weights[i]) * w
        step = self._adapt(step, w, names[i], scale)
        updates.append(-step.astype(g.dtype))
        slots.append(slot)
        summaries.append(self._summaries(statistics))
      state = pack(tree, state.count + 1, slots, summaries)
      return tree.unflatten(updates), state

    return sharded_transforms.ShardedGradientTransformation(
      init=init, update=update, init_partition_spec=self._partition_spec
    )

  def _update_leaf(
    self,
    g: JTensor,
    w: JTensor,
    slot: Slot,
    lr: Float[Array, ''],
    decay: Float[Array, ''],
  ) -> tuple[JTensor, Slot, dict[str, JTensor]]:
    """Returns the step to subtract from `w`, the new state, and statistics."""
    g = g.astype(jnp.float32)
    if self.maybe_inf_to_nan:
      g = update_math.inf_to_nan(g)
    square = g * g
    zeros = update_math.reduce_mean(square < 0.01 * self.epsilon1_grad_sq_reg)
    square = square + self.epsilon1_grad_sq_reg
    dims = self._factored_dims(g.shape)
    if dims:
      row, column = dims
      vr = update_math.moving_average(
        slot.vr, jnp.mean(square, axis=row), decay
      )
      vc = update_math.moving_average(
        slot.vc, jnp.mean(square, axis=column), decay
      )
      slot = slot._replace(vr=vr, vc=vc)
      step = g * _inverse_root(vr, vc, row, column)
    else:
      slot = slot._replace(v=update_math.moving_average(slot.v, square, decay))
      step = g * jax.lax.rsqrt(slot.v)
    learning = update_math.reduce_rms(step)
    step = update_math.clip_rms(step, self.clip_threshold)
    statistics = {
      'fraction_zero_grad': zeros,
      'sharded_adafactor_decay_rate': decay,
      'sharded_adafactor_learning': learning,
      'sharded_adafactor_learning_after_clipping': update_math.reduce_rms(step),
    }
    if self.clip_threshold:
      denominator = jnp.maximum(1.0, learning / self.clip_threshold)
      statistics['sharded_adafactor_clipping_denom'] = denominator
    if self.multiply_by_parameter_scale:
      floor = self.epsilon2_param_scale_reg
      scale = jnp.maximum(update_math.reduce_rms(w), floor)
      statistics['sharded_adafactor_parameter_scale'] = scale
      lr = lr * scale
    step = lr * step
    statistics['sharded_adafactor_update_scale'] = lr
    if self.beta1:
      old = quantized_moments.to_float(slot.m, slot.m_scale)
      step = self.beta1 * old + (1.0 - self.beta1) * step
      dtype = self._momentum_dtype(w.shape)
      m, m_scale = quantized_moments.to_quantized(step, dtype)
      slot = slot._replace(m=m, m_scale=m_scale)
    return step, slot, statistics

  def _summaries(self, statistics: dict[str, Any]) -> dict[str, Any]:
    """Returns the summaries of a variable by name; {} if disabled."""
    if not self.per_var_learning_summary:
      return {}
    group = f'{self.name}/' if self.name else ''
    return {f'{group}{key}': value for key, value in statistics.items()}

  def _initial_summaries(
    self, leaves: Sequence[Any], value: Callable[[], Any]
  ) -> list[dict[str, Any]]:
    """Returns the summaries of each variable, with values of `value()`."""
    names = set(_SUMMARY_NAMES)
    if not self.clip_threshold:
      names.remove('sharded_adafactor_clipping_denom')
    if not self.multiply_by_parameter_scale:
      names.remove('sharded_adafactor_parameter_scale')
    return [self._summaries({name: value() for name in names}) for _ in leaves]

  def _adapt(
    self, step: JTensor, w: JTensor, name: str, scale: JTensor
  ) -> JTensor:
    """Returns `step` with the norm `scale` |w|, unless `name` is excluded.

    Args:
      step: the step, with the learning rate.
      w: the variable.
      name: the name of the variable.
      scale: the learning rate in `step`.
    """
    excluded = self.exclude_from_layerwise_adaptation or []
    if isinstance(excluded, str):
      excluded = [excluded]
    if not self.layerwise_adaptation or any(
      re.match(pattern, name) for pattern in excluded
    ):
      return step
    w_rms, step_rms = update_math.reduce_rms(w), update_math.reduce_rms(step)
    is_nonzero = (w_rms > 0) & (step_rms > 0)
    ratio = scale * w_rms / jnp.where(is_nonzero, step_rms, 1.0)
    return step * jnp.where(is_nonzero, ratio, 1.0)

  def _init_slot(self, w: JTensor) -> Slot:
    return Slot(
      *(
        part
        if masked_trees.is_masked(part)
        else jnp.zeros([w.shape[i] for i in part[0]], part[1])
        for part in self._layout(w.shape)
      )
    )

  def _partition_spec(self, hparams: _Hparams) -> ShardedAdafactorState:
    sharded_transforms.check_not_stacked('ShardedAdafactor', hparams)
    leaves, tree = jax.tree.flatten(hparams)
    slots = [
      Slot(
        *(
          part
          if masked_trees.is_masked(part)
          else sharded_transforms.like(hp, keep=part[0], dtype=part[1])
          for part in self._layout(hp.shape)
        )
      )
      for hp in leaves
    ]
    summaries = self._initial_summaries(
      leaves, lambda: sharded_transforms.replicated([], jnp.float32)
    )
    count = sharded_transforms.replicated([], jnp.int32)
    return pack(tree, count, slots, summaries)

  def _layout(self, shape: Sequence[int]) -> Slot:
    """Returns (dimensions of the variable, dtype) of each moment."""
    all_dims = tuple(range(len(shape)))
    slot = Slot()
    if self.beta1:
      dtype = self._momentum_dtype(shape)
      slot = slot._replace(m=(all_dims, jnp.dtype(dtype)))
      if dtype == 'int8':
        slot = slot._replace(m_scale=(all_dims[1:], jnp.float32))
    if dims := self._factored_dims(shape):
      row, column = (tuple(i for i in all_dims if i != dim) for dim in dims)
      return slot._replace(vr=(row, jnp.float32), vc=(column, jnp.float32))
    return slot._replace(v=(all_dims, jnp.float32))

  def _momentum_dtype(self, shape: Sequence[int]) -> str:
    """Returns the stored dtype of the first moment; scalars have no columns."""
    is_scalar_in_int8 = not shape and self.quantized_dtype == 'int8'
    return 'float32' if is_scalar_in_int8 else self.quantized_dtype

  def _factored_dims(self, shape: Sequence[int]) -> tuple[int, int] | None:
    """Returns the dimensions that vr and vc average over, or None."""
    if not self.factored or len(shape) < 2 or 0 in shape:
      return None
    if not self.sort_factored_second_moment_dims:
      return len(shape) - 1, len(shape) - 2
    # If sizes are equal, the first dimension counts as the larger.
    first, second = np.argsort([-size for size in shape], kind='stable')[:2]
    if shape[second] < self.min_dim_size_to_factor:
      return None
    return int(first), int(second)

  def _second_moment_decay(self, count: JTensor) -> Float[Array, '']:
    # Not earlier: programs build it to restore states that they do not update.
    name = f'decay_{self.decay_method}'
    if not getattr(self, name):
      raise ValueError(
        f'ShardedAdafactor.{name} must be above 0 for'
        f' decay_method={self.decay_method!r}, got 0'
      )
    if self.decay_method == 'adam':
      return update_math.bias_corrected_decay(self.decay_adam, count)
    return update_math.power_decay(self.decay_pow, count)

  def _weight_decays(
    self, tree: Nested[JTensor], hparams: _Hparams | None
  ) -> list[float]:
    """Returns the weight decay of each variable, 0 for none."""
    names = [name for name, _ in py_utils.tree_paths(tree)]
    weights = [
      regularization.weight_of(self.weight_decay, name) for name in names
    ]
    if not self.respect_skip_lp_regularization:
      return weights
    if hparams is None:
      raise ValueError(
        'respect_skip_lp_regularization needs the declared variables; pass'
        ' var_weight_hparams to get_grad_transformation'
      )
    skip = map(base_layer.var_skip_lp_regularization, jax.tree.leaves(hparams))
    return [0.0 if s else w for s, w in zip(skip, weights, strict=True)]


def sharded_adafactor(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  sharded_adafactor_helper_fn: Callable[..., Any] = ShardedAdafactor,
  **kwargs: Any,
) -> sharded_transforms.GradientTransformation:
  """Returns Adafactor; `kwargs` are fields of the class that makes it."""
  optimizer = sharded_adafactor_helper_fn(**kwargs)
  return optimizer._get_raw_grad_transformation(learning_rate_fn)


def _inverse_root(
  vr: JTensor, vc: JTensor, row: int, column: int
) -> Float[Array, ...]:
  """Returns 1 / sqrt(vr vc / mean(vr)), with both dimensions back."""
  vr = jnp.expand_dims(vr, row)
  vc = jnp.expand_dims(vc, column)
  mean = jnp.mean(vr, axis=column, keepdims=True)
  return jax.lax.rsqrt(vr / mean) * jax.lax.rsqrt(vc)
