# SPDX-License-Identifier: Apache-2.0
"""Sharding over tokens and batching of kernels, which take local arrays."""

from __future__ import annotations

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
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` applied to each shard of the tokens.

  Under `jax.set_mesh` the tokens are sharded over the whole mesh if it divides
  them. Otherwise they keep their sharding, by custom_partitioning; such a
  program is not found in the persistent compilation cache.

  Args:
    fn: takes and returns arrays; never differentiated.
    operands: one group of letters per operand, one letter per dimension, such
      as 'nd dv n'. n is the token dimension, which may be sharded; all other
      dimensions are replicated first.
    results: the same for the results. A result without n is a sum over the
      tokens, and is all-reduced.
  """
  kinds = operands.split(), results.split()
  partitioned = custom_partitioning(fn)
  partitioned.def_partition(
    partition=lambda *args: _partition(fn, kinds, *args),
    infer_sharding_from_operands=lambda mesh, args, out: _shardings(
      mesh, kinds[1], _token_axes(args)
    ),
    sharding_rule=_sharding_rule(*kinds),
    need_replication_factors=_replicated(kinds[0]),
  )

  def run(*args: JTensor) -> tuple[JTensor, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    if _divides(mesh, args[0].shape[0]):
      return _shard_map_over(mesh, fn, kinds)(*args)
    return partitioned(*args)

  batched = custom_vmap(run)
  batched.def_vmap(_loop_batching_rule(run, len(kinds[1])))
  return batched


def _divides(mesh: AbstractMesh, tokens: int) -> bool:
  is_auto = all(t == AxisType.Auto for t in mesh.axis_types)
  return mesh.size > 1 and is_auto and tokens % mesh.size == 0


def _shard_map_over(
  mesh: AbstractMesh,
  fn: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
) -> Callable[..., tuple[JTensor, ...]]:
  axes = mesh.axis_names
  specs = (tuple(_spec(kind, axes) for kind in side) for side in kinds)
  in_specs, out_specs = specs

  def run(*args: JTensor) -> tuple[JTensor, ...]:
    # Empty operands (absent ones) are created inside: Shardy of jaxlib 0.11
    # crashes when it moves such a constant into the mapped function.
    present = [i for i, arg in enumerate(args) if arg.size]

    def local(*shards: JTensor) -> tuple[JTensor, ...]:
      shard_iterator = iter(shards)
      operands = (
        next(shard_iterator) if a.size else jnp.zeros(0, a.dtype) for a in args
      )
      return _all_reduced(fn, kinds[1], axes)(*operands)

    return jax.shard_map(
      local,
      in_specs=tuple(in_specs[i] for i in present),
      out_specs=out_specs,
      check_vma=False,
    )(*(args[i] for i in present))

  return run


def _all_reduced(
  fn: Callable[..., tuple[JTensor, ...]], results: Sequence[str], axes: Any
) -> Callable[..., tuple[JTensor, ...]]:
  """Returns `fn` of a shard with an all-reduce of its sums over tokens."""

  def local(*args: JTensor) -> tuple[JTensor, ...]:
    return tuple(
      r if 'n' in kind else jax.lax.psum(r, axes)
      for r, kind in zip(fn(*args), results, strict=True)
    )

  return local


def _spec(kind: str, axes: Any) -> PartitionSpec:
  return PartitionSpec(*(axes if dim == 'n' else None for dim in kind))


def _sharding_rule(operands: Sequence[str], results: Sequence[str]) -> str:
  left, right = (', '.join(' '.join(k) for k in s) for s in (operands, results))
  return f'{left} -> {right}'


def _replicated(operands: Sequence[str]) -> tuple[str, ...]:
  # Shardy requires the order of appearance.
  return tuple(d for d in dict.fromkeys(''.join(operands)) if d != 'n')


def _token_axes(args: Sequence[Any]) -> Any:
  sharding = args[0].sharding
  spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
  return spec[0] if len(spec) else None


def _shardings(
  mesh: Mesh, kinds: Sequence[str], axes: Any
) -> tuple[NamedSharding, ...]:
  return tuple(NamedSharding(mesh, _spec(kind, axes)) for kind in kinds)


def _partition(
  fn: Callable[..., tuple[JTensor, ...]],
  kinds: tuple[list[str], list[str]],
  mesh: Mesh,
  args: Sequence[Any],
  out: Any,
) -> tuple[Any, ...]:
  del out
  axes = _token_axes(args)
  local = fn if axes is None else _all_reduced(fn, kinds[1], axes)
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
