# SPDX-License-Identifier: Apache-2.0
"""SparsityBaseLayer: pruning of a layer's weights in training.

A weight `w` has a mask `w_sparsity_mask`. The layer has the counters
`num_shots`, `mask_update_count` and `step`, which its weights share: they count
when the weight that is declared last is pruned, once for each call in training.
As upstream, a layer that is called twice in a train step counts two steps.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.quantization.sparsity import (
  sparsity,
  sparsity_hparams,
  sparsity_modes,
)

__getattr__ = module_getattr(__name__)

SPARSITY_NAME_POSTFIX = base_layer.SPARSITY_NAME_POSTFIX
SPARSITY_PRUNED_VALUE_SUFFIX = '_sparsity_mask_pruned_value'

SparsityHParams = sparsity_hparams.SparsityHParams
SparsityType = sparsity_hparams.SparsityType
WeightSparsityParams = sparsity_hparams.WeightSparsityParams
_SYNC = base_layer.WeightHParamsCollection.REQUIRES_MEAN_SYNC


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def sr_ste(
  inputs: Array, mask: Array, sparse_ste_weight: float
) -> tuple[Array, Array, Array]:
  """Returns (pruned weights, mask, regularization weight).

  The gradient is a straight-through estimator plus a term that decays pruned
  weights.

  References: SR-STE, https://arxiv.org/abs/2102.04010
  """
  return sr_ste_fwd(inputs, mask, sparse_ste_weight)[0]


def sr_ste_fwd(
  inputs: Array, mask: Array, sparse_ste_weight: float
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
  """Returns the outputs of `sr_ste` and the residuals of its gradient."""
  decay = jnp.asarray(sparse_ste_weight, inputs.dtype)
  return (inputs * mask, mask, decay), (inputs, mask, decay)


def sr_ste_bwd(
  sparsity_params: float, res: tuple[Array, Array, Array], g: Sequence[Any]
) -> tuple[Array, None]:
  """Returns the gradients of the weights, and None for the mask."""
  del sparsity_params
  inputs, mask, decay = res
  return g[0] + decay * jnp.where(mask, 0, inputs), None


sr_ste.defvjp(sr_ste_fwd, sr_ste_bwd)


class SparsityBaseLayer(base_layer.BaseLayer):
  """Declares, updates and applies the masks of pruned weights."""

  # Sparsity of the weights; None: dense.
  sparsity: SparsityHParams | None = None

  def __post_init__(self) -> None:
    object.__setattr__(self, '_sparsity_names', set())
    # The masks, in the order of their weights.
    object.__setattr__(self, '_mask_names', [])
    super().__post_init__()

  @property
  def sparsity_variables(self) -> set[str]:
    """Names of the masks, counters and other variables of sparsity."""
    return self._sparsity_names

  @nn.nowrap
  def create_sparsity_variables(
    self,
    name: str,
    weight_hparams: WeightHParams,
    scale_shape: Sequence[int] | None = None,
  ) -> None:
    """Declares the mask of a weight, and the counters of the layer."""
    del scale_shape  # Learned masks are not quantized.
    if not self._has_masks:
      return
    self._declare_masks(name, weight_hparams)
    if 'step' not in self._weight_hparams:
      self._declare_counters()

  def sparsifiy(
    self,
    weight: Shaped[Array, '...'],
    name: str,
    inputs: Array | None = None,
    layer_idx: int | None = None,
  ) -> Shaped[Array, '...']:
    """Returns the pruned weight; updates its mask as scheduled.

    Args:
      weight: the weight, in the shape of its mask or reshaped.
      name: its name.
      inputs: the activations, for ACTIVATION_WEIGHTED.
      layer_idx: index of the layer, for sparsified_layers.
    """
    if not self._has_masks or self._settings.weight_params is None:
      return weight
    step = self.get_var('step')
    layers = self._settings.sparsified_layers
    if layers is None or layer_idx is None or layer_idx in layers:
      if self._settings.topk_estimator_type:
        weight = self.sparsify_via_top_k_estimator(weight, name, step)
      else:
        self._maybe_update_mask(weight, inputs, name, step)
        weight = self._prune(weight, name)
    if self._is_last(name + SPARSITY_NAME_POSTFIX):
      self.update_var('step', step + _ends_step())
    return weight

  def sparsify_via_top_k_estimator(
    self, weight: Float[Array, '*shape'], name: str, step: Any
  ) -> Float[Array, '*shape']:
    """Returns a weight times a mask learned from the scores `<name>_mask`."""
    num_kept, group = self._pruned_groups
    mask_name = name + SPARSITY_NAME_POSTFIX
    scores = self._theta_value(f'{name}_mask')
    old = self.get_var(mask_name)
    groups = scores.reshape(-1, group)
    _, indices = jax.lax.top_k(groups, num_kept)
    one_hot = jax.nn.one_hot(indices, group, dtype=jnp.bool_)
    binary = jnp.any(one_hot, axis=-2)
    if self._settings.topk_estimator_type == 'BINARY_MASK':
      zero_with_gradient = groups - jax.lax.stop_gradient(groups)
      soft = zero_with_gradient + binary.astype(groups.dtype)
    else:
      soft = jax.nn.softmax(jnp.where(binary, groups, -jnp.inf)) * num_kept
    is_due = self._is_due(step)
    mask = jnp.where(is_due, binary.reshape(old.shape), old)
    soft = jnp.where(
      is_due, soft.reshape(old.shape), self.get_var(f'{mask_name}_float')
    )
    self.update_var(f'{mask_name}_float', soft)
    self._update_mask(mask_name, old, mask, is_due)
    return weight * soft.reshape(weight.shape).astype(weight.dtype)

  @nn.nowrap
  def masked(self, weight: Array, name: str) -> Array:
    """Returns a weight times its current mask."""
    if not self._has_masks or self._settings.weight_params is None:
      return weight
    mask_name = name + SPARSITY_NAME_POSTFIX
    if self._settings.topk_estimator_type:
      soft = self.get_var(f'{mask_name}_float')
      return weight * soft.astype(weight.dtype)
    return self._prune(weight, name)

  # Private methods.

  @property
  def _settings(self) -> SparsityHParams:
    """The sparsity of a layer that is not dense."""
    if self.sparsity is None:
      raise ValueError(
        f'{type(self).__name__}.sparsity must be set to prune, got None'
      )
    return self.sparsity

  @property
  def _weight_settings(self) -> WeightSparsityParams:
    """The sparsity of weights that are pruned."""
    params = self._settings.weight_params
    if params is None:
      raise ValueError(
        f'{type(self).__name__}.sparsity.weight_params must be set to prune,'
        ' got None'
      )
    return params

  @property
  def _pruned_groups(self) -> tuple[int, int]:
    """The number of kept weights of a group, and the size of groups."""
    rate = self._weight_settings.prune_rate
    if not isinstance(rate, tuple | list):
      raise ValueError(
        f'prune_rate of {type(self).__name__} must be (N, M), got {rate}'
      )
    num_kept, group = rate
    return num_kept, group

  @property
  def _has_masks(self) -> bool:
    return self.sparsity is not None and not isinstance(
      self.sparsity.mode, sparsity_modes.InferenceMode
    )

  @property
  def _has_pruned_value(self) -> bool:
    params = self._settings.weight_params
    return params is not None and (
      params.pruned_value != 0.0 or params.pruned_value_trainable
    )

  @nn.nowrap
  def _declare_sparsity(
    self, name: str, hparams: WeightHParams, trainable: bool = False
  ) -> None:
    self._sparsity_names.add(name)
    self._declare_variable(name, hparams, trainable)

  @nn.nowrap
  def _declare_masks(self, name: str, weight: WeightHParams) -> None:
    def like_weight(init: WeightInit | None, dtype: Any) -> WeightHParams:
      hparams = copy.copy(weight)
      hparams.init, hparams.dtype = init, dtype
      return hparams

    mask_name = name + SPARSITY_NAME_POSTFIX
    self._mask_names.append(mask_name)
    keep_all = like_weight(WeightInit.Constant(True), jnp.bool_)
    self._declare_sparsity(mask_name, keep_all)
    if self._settings.topk_estimator_type:
      scores = like_weight(weight.init, None)
      self._declare_sparsity(f'{name}_mask', scores, trainable=True)
      soft = like_weight(WeightInit.Constant(1.0), jnp.float32)
      soft.collections = [_SYNC]
      self._declare_sparsity(f'{mask_name}_float', soft)
    if self._has_pruned_value:
      params = self._weight_settings
      value = _scalar(params.pruned_value, jnp.float32)
      self._declare_sparsity(
        name + SPARSITY_PRUNED_VALUE_SUFFIX,
        value,
        trainable=params.pruned_value_trainable,
      )

  @nn.nowrap
  def _declare_counters(self) -> None:
    shots = self._settings.mode.get_num_shots()
    counters = {'num_shots': shots, 'mask_update_count': 0, 'step': 0}
    for name, value in counters.items():
      self._declare_sparsity(name, _scalar(value, jnp.int32, (_SYNC,)))
    if self._settings.track_sad_metric:
      divergence = _scalar(0.0, jnp.float32, (_SYNC,))
      self._declare_sparsity('sparse_architecture_divergence', divergence)

  def _maybe_update_mask(
    self, weight: Array, inputs: Array | None, name: str, step: Array
  ) -> None:
    """Updates a mask if the schedule requires it."""
    if isinstance(self._settings.mode, sparsity_modes.MaterializeMode):
      return
    mask_name = name + SPARSITY_NAME_POSTFIX
    stored = self.get_var(mask_name)
    old = stored.reshape(weight.shape)

    def new_mask() -> Array:
      score = sparsity.compute_score(weight, self._settings.score, inputs)
      return self._new_mask(score, old, step)

    is_due = self._is_due(step)
    new = jax.lax.cond(is_due, new_mask, lambda: old)
    self._update_mask(mask_name, stored, new.reshape(stored.shape), is_due)

  @nn.nowrap
  def _is_due(self, step: Any) -> Array:
    mode, count = self._settings.mode, self.get_var('mask_update_count')
    if isinstance(mode, sparsity_modes.FewShotMode):
      # A copy: the mode of the layer must not hold a tracer.
      mode = copy.copy(mode)
      mode.increment_target_step(count)
    return mode.update_cond(step, count)

  @nn.nowrap
  def _is_last(self, mask_name: str) -> bool:
    return mask_name == self._mask_names[-1]

  @nn.nowrap
  def _update_mask(
    self, name: str, old: Array, new: Array, is_due: Array
  ) -> None:
    """Stores a mask and its last change; counts the updates."""
    self.update_var(name, new)
    if self._settings.track_sad_metric:
      changed = jnp.mean(jnp.logical_xor(old, new).astype(jnp.float32))
      self.update_var('sparse_architecture_divergence', changed)
    if not self._is_last(name):
      return
    count = self.get_var('mask_update_count') + is_due * _ends_step()
    self.update_var('mask_update_count', count)
    shot_modes = sparsity_modes.OneShotMode, sparsity_modes.FewShotMode
    if isinstance(self._settings.mode, shot_modes):
      self.add_summary('mask_update_count', count, verbosity=4)

  @nn.nowrap
  def _new_mask(self, score: Array, old: Array, step: Array) -> Array:
    params, kind = self._weight_settings, self._settings.sparsity_type
    rate = params.prune_rate
    if kind == SparsityType.UNSTRUCTURED:
      schedule = self._settings.polynomial_decay_schedule
      share = rate if schedule is None else _scheduled(schedule, step)
      if share is None:
        return old
      return sparsity.get_sparsity_mask_unstructured(score, old, share)
    if rate is None:
      return old
    if kind == SparsityType.CHANNELWISE_PRUNING:
      return sparsity.get_sparsity_mask_channelwise(
        score, rate, self._settings.channelwise_pruning_dim
      )
    num_kept, group = self._pruned_groups
    return sparsity.get_sparsity_mask(
      score,
      num_kept,
      group,
      order=self._settings.order,
      block_size=self._settings.block_size,
      offset=params.offset,
    )

  @nn.nowrap
  def _prune(self, weight: Array, name: str) -> Array:
    mask = self.get_var(name + SPARSITY_NAME_POSTFIX).reshape(weight.shape)
    params = self._weight_settings
    if params.sparse_ste:
      return sr_ste(weight, mask, params.sparse_ste_weight)[0]
    value = None
    if self._has_pruned_value:
      value_name = name + SPARSITY_PRUNED_VALUE_SUFFIX
      is_trainable = params.pruned_value_trainable
      value = (self._theta_value if is_trainable else self.get_var)(value_name)
    return sparsity.apply_sparsity(weight, mask, pruned_value=value)


def _scalar(
  value: int | float, dtype: Any, collections: Sequence[str] = ()
) -> WeightHParams:
  return WeightHParams(
    shape=[],
    init=WeightInit.Constant(value),
    dtype=dtype,
    collections=collections,
  )


def _ends_step() -> Array:
  """Returns 1, 0 for all but the last microbatch of a pipeline."""
  ends_step = base_layer.cur_jax_context().ends_step
  return jnp.asarray(ends_step, jnp.int32)


def _scheduled(
  schedule: sparsity_hparams.PolynomialDecayParams, step: Array
) -> Array:
  """Returns the percentage of zeros at a step (arXiv:1710.01878, eq. 1)."""
  first, last = schedule.begin_step, schedule.end_step
  remaining = 1 - (jnp.minimum(step, last) - first) / (last - first)
  increase = schedule.final_sparsity - schedule.initial_sparsity
  rate = schedule.final_sparsity - increase * remaining**schedule.exponent
  return jnp.where(step >= first, rate, 0.0)
