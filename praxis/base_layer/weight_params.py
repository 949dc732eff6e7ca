# SPDX-License-Identifier: Apache-2.0
"""What is declared of each weight, and the box that carries it to the tree."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from flax.core import meta as flax_meta

from praxis.base_layer import initializers
from praxis.base_layer.initializers import WeightInit
from praxis.pytypes import JTensor, PRNGKey, SplitDimsMapping


class WeightHParamsCollection:
  """Flags that a weight can carry in `WeightHParams.collections`."""

  SKIP_LP_REGULARIZATION = '__lingvo_jax_skip_regularization'
  NON_TRAINABLE = '_lingvo_jax_non_trainable'
  REQUIRES_MEAN_SYNC = '_requires_mean_sync'
  REQUIRES_SUM_SYNC = '_requires_sum_sync'
  DISALLOW_BFLOAT16_CONVERSION = '_disallow_bfloat16_conversion'
  OVERWRITE_WITH_GRADIENT = '_overwrite_with_gradient'
  # Together with the last: of several uses in a step, the largest counts.
  TAKE_LARGEST_GRADIENT = '_take_largest_gradient'


@dataclasses.dataclass
class WeightHParams:
  """Shape, distribution, sharding and flags of one weight."""

  shape: Sequence[int]
  # None: the layer's params_init.
  init: WeightInit | None = None
  # None: the layer's dtype.
  dtype: Any = None
  # Flags of WeightHParamsCollection.
  collections: Sequence[str] | None = None
  mesh_shape: Sequence[int] | None = None
  # How `shape` is split over the mesh; None on a mesh means replicated.
  tensor_split_dims_mapping: SplitDimsMapping = None
  # Leading dimensions added by repeated and pipelined layers, outermost first.
  repeat_prefix: Sequence[int] | None = None
  repeat_prefix_split_dims_mapping: SplitDimsMapping = None
  repeat_optimizer_dims_mapping: SplitDimsMapping = None
  # Axes of `shape` that count as fan-in and fan-out; None: the last two.
  fan_in_axes: Sequence[int] | None = None
  fan_out_axes: Sequence[int] | None = None

  def __post_init__(self) -> None:
    self.shape = tuple(self.shape)
    self.collections = tuple(self.collections or ())
    mapping = self.tensor_split_dims_mapping
    if mapping is None and self.mesh_shape is not None:
      self.tensor_split_dims_mapping = (-1,) * len(self.shape)
    elif mapping is not None and len(mapping) != len(self.shape):
      raise ValueError(
        f'tensor_split_dims_mapping must have {len(self.shape)} entries for '
        f'a weight of shape {self.shape}, got {list(mapping)}'
      )

  def __hash__(self) -> int:
    return hash(self.shape)

  @property
  def full_shape(self) -> tuple[int, ...]:
    """The shape with the repeat prefix before it."""
    return tuple(self.repeat_prefix or ()) + tuple(self.shape)

  @property
  def full_split_dims_mapping(self) -> list[Any] | None:
    """The mapping of `full_shape`; None without a mesh."""
    if self.tensor_split_dims_mapping is None:
      return None
    prefix = self.repeat_prefix_split_dims_mapping
    if prefix is None:
      prefix = (-1,) * len(self.repeat_prefix or ())
    return [*prefix, *self.tensor_split_dims_mapping]


class BoxedParam(struct.PyTreeNode, flax_meta.AxisMetadata):
  """A weight and its declaration, which scans and vmaps extend by an axis.

  The transforms pass `metadata_params`: `x_times` (the length of the axis),
  `prefix_split_dims_mapping` (what splits it) and `optimizer_dims_mapping`.
  """

  value: Any
  meta: WeightHParams = struct.field(pytree_node=False)

  def unbox(self, apply_constraint: bool = True) -> Any:
    del apply_constraint
    return self.value

  def replace_boxed(self, val: Any) -> BoxedParam:
    return self.replace(value=val)

  def add_axis(self, index: int, metadata_params: dict[Any, Any]) -> BoxedParam:
    del index  # The prefix is always in front.
    meta = copy.copy(self.meta)
    meta.repeat_prefix = (
      metadata_params['x_times'],
      *(meta.repeat_prefix or ()),
    )
    meta.repeat_prefix_split_dims_mapping = _prepend(
      metadata_params.get('prefix_split_dims_mapping'),
      meta.repeat_prefix_split_dims_mapping,
    )
    if (optimizer := metadata_params.get('optimizer_dims_mapping')) is not None:
      meta.repeat_optimizer_dims_mapping = _prepend(
        optimizer, meta.repeat_optimizer_dims_mapping
      )
    return self.replace(meta=meta)

  def remove_axis(
    self, index: int, metadata_params: dict[Any, Any]
  ) -> BoxedParam:
    del index
    meta = copy.copy(self.meta)
    meta.repeat_prefix = _rest(meta.repeat_prefix)
    meta.repeat_prefix_split_dims_mapping = _rest(
      meta.repeat_prefix_split_dims_mapping
    )
    if metadata_params.get('optimizer_dims_mapping') is not None:
      meta.repeat_optimizer_dims_mapping = _rest(
        meta.repeat_optimizer_dims_mapping
      )
    return self.replace(meta=meta)


def init_var(
  var_p: WeightHParams, prng_key: PRNGKey, var_full_name: str = ''
) -> JTensor:
  """Returns a sample of a weight as its declaration says.

  Raises:
    ValueError: the initialiser does not fit; `var_full_name` says where.
  """
  if var_p.init is None:
    raise ValueError(
      f'{var_full_name or "a weight"} of shape {tuple(var_p.shape)} declares '
      'no init, as those of wrapped flax modules; take its value from '
      'layer.init'
    )
  try:
    return initializers.sample(
      var_p.init, prng_key, var_p.shape, var_p.dtype, _fans(var_p)
    )
  except ValueError as error:
    raise ValueError(f'{var_full_name or "a weight"}: {error}') from error


def var_init_scale(var_p: WeightHParams, var_key: str | None = None) -> float:
  """Returns the deviation (Gaussian) or bound (uniform) of initial values.

  Raises:
    ValueError: the initialiser is a constant or orthogonal.
  """
  try:
    return initializers.spread(var_p.init, var_p.shape, _fans(var_p))
  except ValueError as error:
    raise ValueError(
      f'var_init_scale of {var_key or "a weight"} wants a Gaussian or uniform '
      f'init, got {var_p.init}'
    ) from error


def maybe_unbox_value(tree: Any) -> Any:
  """Returns a tree with the value of every box in it."""
  return jax.tree.map(
    lambda x: x.value if isinstance(x, BoxedParam) else x, tree, is_leaf=_is_box
  )


def unbox_meta(tree: Any) -> Any:
  """Returns a tree with the declaration of every weight in it.

  An array without a box, as wrapped flax modules make, gets one by its shape.
  """

  def declaration(x: Any) -> Any:
    if isinstance(x, BoxedParam):
      return x.meta
    return WeightHParams(shape=x.shape, dtype=x.dtype) if _is_array(x) else x

  return jax.tree.map(declaration, tree, is_leaf=_is_box)


def var_not_trainable(var_hparams: WeightHParams) -> bool:
  """Whether the optimizer leaves the variable alone."""
  return WeightHParamsCollection.NON_TRAINABLE in var_hparams.collections


def var_is_trainable(var_hparams: WeightHParams) -> bool:
  """Whether the optimizer updates the variable."""
  return not var_not_trainable(var_hparams)


def var_requires_mean_sync(var_hparams: WeightHParams) -> bool:
  """Whether replicas take the mean of their values of the variable."""
  return WeightHParamsCollection.REQUIRES_MEAN_SYNC in var_hparams.collections


def var_requires_sum_sync(var_hparams: WeightHParams) -> bool:
  """Whether replicas take the sum of their changes of the variable."""
  return WeightHParamsCollection.REQUIRES_SUM_SYNC in var_hparams.collections


def var_disallow_bfloat16_conversion(var_hparams: WeightHParams) -> bool:
  """Whether the variable keeps its dtype where others become bfloat16."""
  flag = WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION
  return flag in var_hparams.collections


def var_skip_lp_regularization(var_params: WeightHParams) -> bool:
  """Whether the variable is left out of Lp regularisation."""
  flag = WeightHParamsCollection.SKIP_LP_REGULARIZATION
  return flag in var_params.collections


def var_overwrite_with_gradient(var_hparams: WeightHParams) -> bool:
  """Whether the gradient is the new value of the variable."""
  flag = WeightHParamsCollection.OVERWRITE_WITH_GRADIENT
  return flag in var_hparams.collections


def var_take_largest_gradient(var_hparams: WeightHParams) -> bool:
  """Whether gradients of the variable's uses combine by their maximum."""
  flag = WeightHParamsCollection.TAKE_LARGEST_GRADIENT
  return flag in var_hparams.collections


def _fans(hparams: WeightHParams) -> tuple[int | None, int | None]:
  return initializers.get_fan_in_fan_out(
    hparams.shape, hparams.fan_in_axes, hparams.fan_out_axes
  )


def _prepend(entry: Any, mapping: SplitDimsMapping) -> tuple[Any, ...]:
  first = -1 if entry is None else entry
  return (first, *(mapping or ()))


def _rest(mapping: Any) -> Any:
  return tuple(mapping)[1:] or None if mapping else mapping


def _is_box(x: Any) -> bool:
  return isinstance(x, BoxedParam)


def _is_array(x: Any) -> bool:
  return isinstance(x, jax.Array | jax.ShapeDtypeStruct | jnp.ndarray)
