# SPDX-License-Identifier: Apache-2.0
"""Shardings derived by einsum-like equations, such as `'btd->b[t]d'`.

On the right-hand side, `?` is a dimension that the compiler shards, and
bracketed dimensions are optional. The mesh is that of `jax.set_mesh`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Shaped

from praxis import base_layer, py_utils

DimSharding = str | Sequence[str] | None
Sharding = Sequence[DimSharding] | None


def derive(s: Sharding, eqn: str) -> Sharding:
  """Returns the derived sharding: ('x', 'y') by 'ab->cba' is (None, 'y', 'x').

  Raises:
    ValueError: the equation does not have one arrow, or not one letter on the
      left-hand side for each dimension of `s`.
  """
  if s is None:
    return None
  return _permuted(s, *_sides(s, eqn))


def shard(
  x: Shaped[Array, '...'], s: Sharding, eqn: str | None = None
) -> Shaped[Array, '...']:
  """Returns `x` constrained to a sharding, or to the one that `eqn` derives.

  Returns `x` unchanged without a sharding or a mesh.

  Raises:
    ValueError: the equation does not fit `s`, or the rank of `x`.
  """
  if s is None or jax.sharding.get_abstract_mesh().empty:
    return x
  spec: list[Any] = list(s)
  if eqn is not None:
    original, derived = _sides(s, eqn)
    letters = _expand_optional(derived, x.ndim, eqn)
    spec = [
      PartitionSpec.UNCONSTRAINED if letter == '?' else axes
      for letter, axes in zip(
        letters, _permuted(s, original, letters), strict=True
      )
    ]
  if len(spec) != x.ndim:
    raise ValueError(
      f'a sharding of shape {x.shape} must have {x.ndim} entries, got {spec}'
    )
  axes = PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in spec))
  return jax.lax.with_sharding_constraint(
    x, base_layer.maybe_transpose_mesh_axes(axes)
  )


def get_dim_sharding(s: Sharding, dim: int) -> DimSharding:
  """Returns the sharding of one dimension, None without a sharding."""
  return None if s is None else s[dim]


def shard_one_dim(
  x: Shaped[Array, '...'], s: DimSharding, dim: int
) -> Shaped[Array, '...']:
  """Returns `x` with one dimension sharded; the compiler shards the others."""
  dim %= x.ndim
  return shard(x, (s,), 'd->' + '?' * dim + 'd' + '?' * (x.ndim - dim - 1))


def num_shards_on_dim(dim_sharding: DimSharding) -> int:
  """Returns the number of shards of a dimension; unknown axes count as 1."""
  if dim_sharding is None:
    return 1
  axes = py_utils.mesh_axes(dim_sharding)
  names = base_layer.cur_jax_context().hparams.mesh_axes_transpose
  sizes = dict(jax.sharding.get_abstract_mesh().shape)
  return math.prod(
    sizes.get(base_layer.transpose_one_axis(axis, names), 1) for axis in axes
  )


def dividing_axes(entry: DimSharding, size: int) -> tuple[str, ...]:
  """Returns the longest prefix of the axes whose product divides `size`."""
  axes = py_utils.mesh_axes(entry)
  while axes and size % num_devices_along(axes):
    axes = axes[:-1]
  return axes


def num_devices_along(axes: Sequence[str]) -> int:
  """Returns the product of the sizes of mesh axes."""
  sizes = dict(jax.sharding.get_abstract_mesh().shape)
  return math.prod(sizes[axis] for axis in axes)


def _sides(s: Sequence[DimSharding], eqn: str) -> tuple[str, str]:
  sides = eqn.replace(' ', '').split('->')
  if len(sides) != 2 or len(sides[0]) != len(s):
    raise ValueError(
      f"eqn must read 'original->derived' with a letter for each of {list(s)} "
      f'on the left-hand side, got {eqn!r}'
    )
  return sides[0], sides[1]


def _permuted(
  s: Sequence[DimSharding], original: str, derived: str
) -> tuple[DimSharding, ...]:
  return tuple(s[original.index(d)] if d in original else None for d in derived)


def _expand_optional(derived: str, ndim: int, eqn: str) -> str:
  """Returns the letters of an array of rank `ndim`."""
  without = re.sub(r'\[.*\]', '', derived)
  for letters in (without, derived.replace('[', '').replace(']', '')):
    if len(letters) == ndim:
      return letters
  raise ValueError(f'eqn {eqn!r} does not fit an array of {ndim} dimensions')
