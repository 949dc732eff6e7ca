# SPDX-License-Identifier: Apache-2.0
"""Declarations of weights, and the box that carries them through flax."""

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
from praxis.pytypes import JTensor, Nested, PRNGKey, SplitDimsMapping


class WeightHParamsCollection:
  """Flags that a weight can carry in `WeightHParams.collections`."""

  SKIP_LP_REGULARIZATION = '__lingvo_jax_skip_regularization'
  NON_TRAINABLE = '_lingvo_jax_non_trainable'
  REQUIRES_MEAN_SYNC = '_requires_mean_sync'
  REQUIRES_SUM_SYNC = '_requires_sum_sync'
  DISALLOW_BFLOAT16_CONVERSION = '_disallow_bfloat16_conversion'
  OVERWRITE_WITH_GRADIENT = '_overwrite_with_gradient'
  # With OVERWRITE_WITH_GRADIENT: gradients of several uses in a step combine by
  # their maximum instead of their sum.
  TAKE_LARGEST_GRADIENT = '_take_largest_gradient'


@dataclasses.dataclass
class WeightHParams:
  """Shape, initializer, sharding and flags of one weight."""

  shape: Sequence[int]
  # None: the layer's params_init.
  init: WeightInit | None = None
  # None: the layer's dtype.
  dtype: Any = None
  # Flags of WeightHParamsCollection; None: none.
  collections: Sequence[str] | None = None
  mesh_shape: Sequence[int] | None = None
  # The sharding of `shape`; None means replicated if there is a mesh.
  tensor_split_dims_mapping: SplitDimsMapping = None
  # Leading dimensions that repeated and pipelined layers add, outermost first.
  repeat_prefix: Sequence[int] | None = None
  repeat_prefix_split_dims_mapping: SplitDimsMapping = None
  repeat_optimizer_dims_mapping: SplitDimsMapping = None
  # Dimensions of `shape` that make up fan-in and fan-out; None: the last two.
  fan_in_axes: Sequence[int] | None = None
  fan_out_axes: Sequence[int] | None = None
  # The dimensions that a layer contracts, and those of its outputs, where the
  # initializer does not take them as fan-in and fan-out.
  matrix_axes: tuple[Sequence[int], Sequence[int]] | None = None
  # Fraction of the weight that multiplies a token: less than 1 for experts.
  active_fraction: float = 1.0

  def __post_init__(self) -> None:
    self.collections = list(self.collections or [])
    if self.mesh_shape is None:
      return
    mapping = self.tensor_split_dims_mapping
    if mapping is None:
      self.tensor_split_dims_mapping = (-1,) * len(self.shape)
    elif len(mapping) != len(self.shape):
      raise ValueError(
        f'tensor_split_dims_mapping must have {len(self.shape)} entries for '
        f'a weight of shape {tuple(self.shape)}, got {list(mapping)}'
      )

  def __hash__(self) -> int:
    return hash(tuple(self.shape))

  @property
  def full_shape(self) -> tuple[int, ...]:
    """The repeat prefix followed by the shape."""
    return tuple(self.repeat_prefix or ()) + tuple(self.shape)

  @property
  def full_split_dims_mapping(self) -> list[Any] | None:
    """The mapping of `full_shape`; None if no dimension has one.

    A sharded prefix shards weights that are declared without a mapping too.
    """
    prefix = self.repeat_prefix_split_dims_mapping
    if prefix is None:
      prefix = (-1,) * len(self.repeat_prefix or ())
    mapping = self.tensor_split_dims_mapping
    if mapping is None:
      if all(entry in (None, -1) for entry in prefix):
        return None
      mapping = (-1,) * len(self.shape)
    return [*prefix, *mapping]


class BoxedParam(struct.PyTreeNode, flax_meta.AxisMetadata):
  """A weight with its declaration; lifted transforms add axes to both.

  `metadata_params` of the transforms: `x_times` (length of the axis),
  `prefix_split_dims_mapping` (its sharding) and `optimizer_dims_mapping`.
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
    meta.repeat_prefix = [
      metadata_params['x_times'],
      *(meta.repeat_prefix or ()),
    ]
    meta.repeat_prefix_split_dims_mapping = _prepend(
      metadata_params.get('prefix_split_dims_mapping', -1),
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
    meta.repeat_prefix = list(meta.repeat_prefix or ())[1:] or None
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
  """Returns the initial value of a weight.

  Raises:
    ValueError: the declaration has no initializer, or one that does not support
      the shape or dtype.
  """
  if var_p.init is None:
    raise ValueError(
      f'{var_full_name or "a weight"} of shape {tuple(var_p.shape)} declares '
      'no init, like all weights of wrapped flax modules; use the value that '
      'layer.init returns'
    )
  try:
    return initializers.sample(
      var_p.init, prng_key, var_p.shape, var_p.dtype, _fans(var_p)
    )
  except ValueError as error:
    raise ValueError(f'{var_full_name or "a weight"}: {error}') from error


def var_init_scale(var_p: WeightHParams, var_key: str | None = None) -> float:
  """Returns the standard deviation (Gaussian) or bound (uniform) of the init.

  Raises:
    ValueError: there is no initializer, or it is constant or orthogonal.
  """
  wanted = (
    f'var_init_scale of {var_key or "a weight"} needs a Gaussian or uniform '
    f'init, got {var_p.init}'
  )
  if var_p.init is None:
    raise ValueError(wanted)
  try:
    return initializers.scale_of(var_p.init, var_p.shape, _fans(var_p))
  except ValueError as error:
    raise ValueError(wanted) from error


def maybe_unbox_value(tree: Any) -> Any:
  """Returns a tree with every BoxedParam replaced by its value."""
  return jax.tree.map(
    lambda x: x.value if isinstance(x, BoxedParam) else x, tree, is_leaf=_is_box
  )


def unbox_meta(tree: Any) -> Any:
  """Returns a tree with every weight replaced by its declaration.

  The declaration of an unboxed array, as wrapped flax modules create, has its
  shape and dtype only.
  """

  def declaration(x: Any) -> Any:
    if isinstance(x, BoxedParam):
      return x.meta
    return WeightHParams(shape=x.shape, dtype=x.dtype) if _is_array(x) else x

  return jax.tree.map(declaration, tree, is_leaf=_is_box)


def var_not_trainable(var_hparams: WeightHParams) -> bool:
  """Whether the optimizer does not update the variable."""
  return _has(var_hparams, WeightHParamsCollection.NON_TRAINABLE)


def var_is_trainable(var_hparams: WeightHParams) -> bool:
  """Whether the optimizer updates the variable."""
  return not var_not_trainable(var_hparams)


def var_requires_mean_sync(var_hparams: WeightHParams) -> bool:
  """Whether replicas average their values of the variable."""
  return _has(var_hparams, WeightHParamsCollection.REQUIRES_MEAN_SYNC)


def var_requires_sum_sync(var_hparams: WeightHParams) -> bool:
  """Whether replicas sum their changes of the variable."""
  return _has(var_hparams, WeightHParamsCollection.REQUIRES_SUM_SYNC)


def var_disallow_bfloat16_conversion(var_hparams: WeightHParams) -> bool:
  """Whether the variable keeps its dtype when weights are cast to bfloat16."""
  return _has(var_hparams, WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION)


def var_skip_lp_regularization(var_params: WeightHParams) -> bool:
  """Whether the variable is left out of Lp regularization."""
  return _has(var_params, WeightHParamsCollection.SKIP_LP_REGULARIZATION)


def var_overwrite_with_gradient(var_hparams: WeightHParams) -> bool:
  """Whether the variable's gradient is its new value."""
  return _has(var_hparams, WeightHParamsCollection.OVERWRITE_WITH_GRADIENT)


def var_take_largest_gradient(var_hparams: WeightHParams) -> bool:
  """Whether gradients of several uses combine by their maximum."""
  return _has(var_hparams, WeightHParamsCollection.TAKE_LARGEST_GRADIENT)


def _has(hparams: WeightHParams, flag: str) -> bool:
  return flag in (hparams.collections or ())


def _fans(hparams: WeightHParams) -> tuple[int | None, int | None]:
  return initializers.get_fan_in_fan_out(
    hparams.shape, hparams.fan_in_axes, hparams.fan_out_axes
  )


def _prepend(entry: Any, mapping: SplitDimsMapping) -> tuple[Any, ...]:
  return (entry, *(mapping or ()))


NestedWeightHParams = Nested[WeightHParams]


def _rest(mapping: Any) -> Any:
  return tuple(mapping)[1:] or None if mapping else mapping


def _is_box(x: Any) -> bool:
  return isinstance(x, BoxedParam)


def _is_array(x: Any) -> bool:
  return isinstance(x, jax.Array | jax.ShapeDtypeStruct | jnp.ndarray)
