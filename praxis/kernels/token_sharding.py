# SPDX-License-Identifier: Apache-2.0
"""Sharding over tokens and batching of kernels, which take local arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import (
  AbstractMesh,
  AxisType,
  Mesh,
  NamedSharding,
  PartitionSpec,
)

from praxis.pytypes import JTensor


def shard_over_tokens(
  fn: Callable[..., tuple[JTensor, ...]],
  operands: str,
  results: str,
  class_axes: tuple[str, ...] = (),
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` applied to each shard of the tokens, and of the classes.

  Under `jax.set_mesh` the tokens are sharded over the whole mesh if it divides
  them. Axes of type Explicit shard them as the type of the first operand says.
  Otherwise they keep their sharding, by custom_partitioning; such a program is
  not found in the persistent compilation cache.

  Args:
    fn: takes and returns arrays; never differentiated. With `class_axes` it
      reduces over them itself.
    operands: one group of letters per operand, one letter per dimension, such
      as 'nd dv n'. n is the token dimension, which may be sharded; all other
      dimensions are replicated first.
    results: the same for the results. A result without n is a sum over the
      tokens, and is all-reduced.
    class_axes: axes of the mesh of `jax.set_mesh` that shard the dimensions v.
      The other axes shard the tokens, if they divide them.
  """
  kinds = operands.split(), results.split()
  if class_axes:
    run = _over_classes(fn, kinds, class_axes)
  else:
    run = _over_known_mesh(fn, _partitioned(fn, kinds), kinds)
  batched = custom_vmap(run)
  # In the loop it is batched itself, for a vmap of a vmap.
  batched.def_vmap(_loop_batching_rule(batched, len(kinds[1])))
  return batched


def _partitioned(
  fn: Callable[..., tuple[JTensor, ...]], kinds: tuple[list[str], list[str]]
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` with a rule for shardings that are not known yet."""
  partitioned = custom_partitioning(fn)
  partitioned.def_partition(
    partition=lambda *args: _partition(fn, kinds, *args),
    infer_sharding_from_operands=lambda mesh, args, out: _shardings(
      mesh, kinds[1], _token_axes(args)
    ),
    sharding_rule=_sharding_rule(*kinds),
    need_replication_factors=_replicated(kinds[0]),
  )
  return partitioned


def map_over_tokens(
  fn: Callable[..., tuple[JTensor, ...]],
  operands: str,
  results: str,
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` applied to each shard of the tokens, differentiable.

  The arguments are those of `shard_over_tokens`. The tokens are sharded over
  the mesh of `jax.set_mesh` and of types only.
  """
  return _over_known_mesh(fn, fn, (operands.split(), results.split()))


def reshard_like(x: JTensor, other: JTensor) -> JTensor:
  """Returns `x` in the sharding of `other` over axes of type Explicit."""
  sharding = jax.typeof(other).sharding
  if AxisType.Explicit not in sharding.mesh.axis_types:
    return x
  return jax.sharding.reshard(x, sharding)


def _over_known_mesh(
  fn: Callable[..., tuple[JTensor, ...]],
  otherwise: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns a shard_map of `fn` if the mesh is known, else `otherwise`."""

  def run(*args: JTensor) -> tuple[JTensor, ...]:
    sharding = jax.typeof(args[0]).sharding
    if AxisType.Explicit in sharding.mesh.axis_types:
      axes = sharding.spec[0]
      args = tuple(
        jax.sharding.reshard(arg, NamedSharding(sharding.mesh, spec))
        for arg, spec in zip(args, _specs(kinds[0], axes), strict=True)
      )
      return _shard_map_over(sharding.mesh, axes, fn, kinds)(*args)
    mesh = jax.sharding.get_abstract_mesh()
    if _divides(mesh, args[0].shape[0]):
      return _shard_map_over(mesh, mesh.axis_names, fn, kinds)(*args)
    return otherwise(*args)

  return run


def _over_classes(
  fn: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
  class_axes: tuple[str, ...],
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns a shard_map of `fn` over classes and tokens."""

  def run(*args: JTensor) -> tuple[JTensor, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(a for a in mesh.axis_names if a not in class_axes)
    if args[0].shape[0] % math.prod(mesh.shape[a] for a in axes):
      axes = ()
    return _shard_map_over(mesh, axes, fn, kinds, class_axes)(*args)

  return run


def _divides(mesh: AbstractMesh, tokens: int) -> bool:
  is_auto = all(t == AxisType.Auto for t in mesh.axis_types)
  return mesh.size > 1 and is_auto and tokens % mesh.size == 0


def _shard_map_over(
  mesh: AbstractMesh,
  axes: Any,
  fn: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
  class_axes: tuple[str, ...] = (),
) -> Callable[..., tuple[JTensor, ...]]:
  in_specs, out_specs = (_specs(side, axes, class_axes) for side in kinds)

  def run(*args: JTensor) -> tuple[JTensor, ...]:
    # Empty operands (absent ones) are created inside: Shardy of jaxlib 0.11
    # crashes when it moves such a constant into the mapped function.
    present = [i for i, arg in enumerate(args) if arg.size]

    def local(*shards: JTensor) -> tuple[JTensor, ...]:
      shard_iterator = iter(shards)
      operands = (
        next(shard_iterator) if a.size else jnp.zeros(a.shape, a.dtype)
        for a in args
      )
      return _all_reduced(fn, kinds[1], axes)(*operands)

    return jax.shard_map(
      local,
      mesh=mesh,
      in_specs=tuple(in_specs[i] for i in present),
      out_specs=out_specs,
      check_vma=False,
    )(*(args[i] for i in present))

  return run


def _all_reduced(
  fn: Callable[..., tuple[JTensor, ...]], results: Sequence[str], axes: Any
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` of a shard with an all-reduce of its sums over tokens."""
  if not axes:
    return fn

  def local(*args: JTensor) -> tuple[JTensor, ...]:
    return tuple(
      r if 'n' in kind else jax.lax.psum(r, axes)
      for r, kind in zip(fn(*args), results, strict=True)
    )

  return local


def _specs(
  kinds: Sequence[str], axes: Any, class_axes: tuple[str, ...] = ()
) -> tuple[PartitionSpec, ...]:
  by_dim = {'n': axes, 'v': class_axes or None}
  return tuple(PartitionSpec(*map(by_dim.get, kind)) for kind in kinds)


def _sharding_rule(operands: Sequence[str], results: Sequence[str]) -> str:
  left, right = (', '.join(' '.join(k) for k in s) for s in (operands, results))
  return f'{left} -> {right}'


def _replicated(operands: Sequence[str]) -> tuple[str, ...]:
  # Shardy requires the order of appearance.
  return tuple(d for d in dict.fromkeys(''.join(operands)) if d != 'n')


def _token_axes(args: Sequence[Any]) -> Any:
  sharding = args[0].sharding
  if not isinstance(sharding, NamedSharding) or not len(sharding.spec):
    return None
  return sharding.spec[0]


def _shardings(
  mesh: Mesh, kinds: Sequence[str], axes: Any
) -> tuple[NamedSharding, ...]:
  return tuple(NamedSharding(mesh, spec) for spec in _specs(kinds, axes))


def _partition(
  fn: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
  mesh: Mesh,
  args: Sequence[Any],
  out: Any,
) -> tuple[Any, ...]:
  del out
  axes = _token_axes(args)
  local = _all_reduced(fn, kinds[1], axes)
  operands, results = (_shardings(mesh, kind, axes) for kind in kinds)
  return mesh, local, results, operands


def _loop_batching_rule(
  fn: Callable[..., tuple[JTensor, ...]], num_results: int
) -> Callable[..., Any]:
  """Returns a batching rule that loops over the batch."""

  def rule(
    size: int, batched: Sequence[bool], *args: JTensor
  ) -> tuple[tuple[JTensor, ...], tuple[bool, ...]]:
    def apply_to_example(i: JTensor) -> tuple[JTensor, ...]:
      pairs = zip(args, batched, strict=True)
      return fn(*(a[i] if b else a for a, b in pairs))

    results = jax.lax.map(apply_to_example, jnp.arange(size))
    return tuple(results), (True,) * num_results

  return rule
