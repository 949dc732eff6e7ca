# SPDX-License-Identifier: Apache-2.0
"""Small helpers on trees and arrays that every floor may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from praxis.nested_map import NestedMap as NestedMap
from praxis.pytypes import JTensor, Nested


def tree_paths(tree: Any, separator: str = '/') -> list[tuple[str, Any]]:
  """Returns (path, leaf) pairs in JAX's order; keys joined by `separator`."""
  pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [
    (jax.tree_util.keystr(path, simple=True, separator=separator), leaf)
    for path, leaf in pairs
  ]


def map_with_path(
  fn: Callable[[str, Any], Any], tree: Any, separator: str = '/'
) -> Any:
  """Returns `tree` with each leaf replaced by `fn(path, leaf)`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: fn(
      jax.tree_util.keystr(path, simple=True, separator=separator), leaf
    ),
    tree,
  )


def get_large_negative_number(dtype: jnp.dtype) -> JTensor:
  """Returns -0.7 times the largest number of `dtype`: hides, yet never nan."""
  info = jnp.finfo if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo
  return jnp.asarray(-0.7 * info(dtype).max, dtype=dtype)


def maybe_cast_float(x: Nested[JTensor], dtype: jnp.dtype) -> Nested[JTensor]:
  """Returns `x` with its floating point leaves in `dtype`, others as is."""

  def cast(leaf: Any) -> Any:
    if not hasattr(leaf, 'dtype') or leaf.dtype == dtype:
      return leaf
    return (
      leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    )

  return jax.tree.map(cast, x)


def tree_size(tree: Any) -> int:
  """Returns the number of elements in all arrays (or shapes) of a tree."""
  return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def l2_normalize(
  x: JTensor, axis: int | Sequence[int] = -1, epsilon: float = 1e-12
) -> JTensor:
  """Returns `x` over its L2 norm along `axis`; `epsilon` is added inside."""
  axes = axis if isinstance(axis, int) else tuple(axis)
  squares = jnp.sum(jnp.square(x), axis=axes, keepdims=True)
  return x / jnp.sqrt(squares + epsilon)


def apply_padding(
  inputs: JTensor,
  padding: JTensor,
  pad_value: JTensor | None = None,
  use_select: bool = True,
  axis: int | None = None,
) -> JTensor:
  """Returns `inputs` with `pad_value` (0) where `padding` is not 0.

  Args:
    inputs: of any shape.
    padding: broadcast to the inputs.
    pad_value: what padded elements become.
    use_select: whether to select, rather than multiply and add.
    axis: the dimension of `padding` from which on it is aligned to the left.
  """
  if axis is not None:
    tail = inputs.ndim - axis
    shape = padding.shape[: axis + tail]
    padding = padding.reshape(shape + (1,) * max(inputs.ndim - len(shape), 0))
  if use_select:
    value = jnp.zeros([], inputs.dtype) if pad_value is None else pad_value
    return jnp.where(padding > 0, value, inputs)
  kept = inputs * (1.0 - padding.astype(jnp.float32)).astype(inputs.dtype)
  if pad_value is None:
    return kept
  return kept + pad_value * padding.astype(pad_value.dtype)
