# SPDX-License-Identifier: Apache-2.0
"""Restore transformations: leaves with other names or shapes on disk.

`task.train.restore_transformations` maps a regex on the path of a leaf,
`mdl_vars/params/lm/softmax/w`, to its path in the checkpoint, with groups as in
`re.Match.expand`, or to an object with the fields `original_key`, `value_fn`
and `use_fallback` of Orbax's Transform; without `original_key` the path is that
of the leaf. Leaves that a checkpoint of the job has under their own name, with
their shape and dtype, are not transformed, so that it continues from its own
checkpoints. With `use_fallback` a leaf that is missing, or has another shape,
keeps its fresh value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from pax.checkpoints import checkpoint_reader, low_rank_updates
from pax.checkpoints.types import CheckpointError, LeafDict, Shapes

ValueFn = Callable[[jax.Array], ArrayLike]
# A path, or an object such as Orbax's Transform, by regex.
Rules = Mapping[str, Any]


class Transformations:
  """Compiled restore transformations."""

  def __init__(self, rules: Rules | None = None, *, is_own: bool = True):
    """Compiles the rules.

    Args:
      rules: The rules.
      is_own: Whether the checkpoints may be those of the job, which are not
        transformed again.
    """
    self._is_own = is_own
    self._fallbacks: list[re.Pattern[str]] = []
    self._rules: list[tuple[re.Pattern[str], str | None, ValueFn | None]] = []
    for pattern, rule in (rules or {}).items():
      if _uses_fallback(rule):
        self._fallbacks.append(re.compile(pattern))
      else:
        key = rule if isinstance(rule, str) else rule.original_key
        value_fn = getattr(rule, 'value_fn', None)
        self._rules.append((re.compile(pattern), key, value_fn))

  @property
  def is_identity(self) -> bool:
    """Whether no leaf is transformed."""
    return not (self._rules or self._fallbacks)

  def read(
    self,
    checkpoint: checkpoint_reader.CheckpointReader,
    abstract: LeafDict,
    *,
    is_full: bool = False,
  ) -> LeafDict:
    """Reads as the checkpoint does, with transformed leaves.

    Args:
      checkpoint: The checkpoint.
      abstract: Shapes and shardings of leaves by name; arrays for leaves that
        may keep fresh values.
      is_full: Whether further leaves in the checkpoint are an error.

    Raises:
      CheckpointError: A leaf is missing, or has another shape or dtype, or a
        weight lacks its low-rank update.
      CorruptCheckpointError: Files differ from what was written.
    """
    saved = checkpoint.shapes
    if self.is_identity:
      low_rank_updates.check_used(checkpoint.path, saved, abstract)
      return checkpoint.read(abstract, is_full=is_full)
    fresh = {
      name: leaf
      for name, leaf in abstract.items()
      if self._keeps_fresh(name, leaf, saved)
    }
    abstract = {k: v for k, v in abstract.items() if k not in fresh}
    sources = {
      name: self._source(name, leaf, saved) for name, leaf in abstract.items()
    }
    wanted = {
      name: (
        source,
        abstract[name]
        if value_fn is None
        else _replicated(saved, source, abstract[name]),
      )
      for name, (source, value_fn) in sources.items()
    }
    values = _read_each(checkpoint, wanted)
    transformed = {
      name: values[name]
      if value_fn is None
      else _apply(value_fn, values[name], name, abstract[name])
      for name, (_, value_fn) in sources.items()
    }
    return transformed | fresh

  def unchanged(self, saved: Shapes, abstract: LeafDict) -> set[str]:
    """Returns the names of leaves that `read` returns as they are saved.

    Args:
      saved: Shapes and dtypes of the leaves of the checkpoint.
      abstract: As for `read`.
    """
    return {
      name
      for name, leaf in abstract.items()
      if not self._keeps_fresh(name, leaf, saved)
      and self._source(name, leaf, saved) == (name, None)
    }

  def _keeps_fresh(
    self,
    name: str,
    leaf: jax.Array | jax.ShapeDtypeStruct,
    saved: Shapes,
  ) -> bool:
    if name in saved and tuple(saved[name][0]) == tuple(leaf.shape):
      return False
    slash_path = name.replace('.', '/')
    return isinstance(leaf, jax.Array) and any(
      pattern.fullmatch(slash_path) for pattern in self._fallbacks
    )

  def _source(
    self, name: str, leaf: jax.Array | jax.ShapeDtypeStruct, saved: Shapes
  ) -> tuple[str, ValueFn | None]:
    """Returns the saved leaf that becomes `name`, and its value function."""
    expected = (tuple(leaf.shape), jnp.dtype(leaf.dtype).name)
    if self._is_own and saved.get(name) == expected:
      return name, None
    slash_path = name.replace('.', '/')
    for pattern, key, value_fn in self._rules:
      if match := pattern.fullmatch(slash_path):
        source = match.expand(key) if key else slash_path
        source = source.replace('/', '.')
        if source in saved or name not in saved:
          return source, value_fn
    return name, None


def needs_fresh_state(rules: Rules | None) -> bool:
  """Returns whether leaves may keep fresh values."""
  return any(map(_uses_fallback, (rules or {}).values()))


def _uses_fallback(rule: Any) -> bool:
  return bool(getattr(rule, 'use_fallback', False))


def _read_each(
  checkpoint: checkpoint_reader.CheckpointReader,
  wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]],
) -> dict[str, jax.Array]:
  """Returns leaves of a checkpoint under other names.

  A saved leaf is read again for each name, because shapes and shardings may
  differ, and no two leaves of a state may share a buffer.

  Args:
    checkpoint: The checkpoint.
    wanted: The saved leaf of each name; its shape, dtype and sharding.

  Raises:
    CheckpointError: A leaf is missing, or has another shape or dtype.
    CorruptCheckpointError: Files differ from what was written.
  """
  names_of: dict[str, list[str]] = {}
  for name, (source, _) in wanted.items():
    names_of.setdefault(source, []).append(name)
  values: dict[str, jax.Array] = {}
  for names in itertools.zip_longest(*names_of.values()):
    # One name of each saved leaf.
    group = {wanted[name][0]: name for name in names if name is not None}
    leaves = checkpoint.read(
      {source: wanted[name][1] for source, name in group.items()}
    )
    values |= {name: leaves[source] for source, name in group.items()}
  return values


def _replicated(
  saved: Shapes, source: str, leaf: jax.ShapeDtypeStruct
) -> jax.ShapeDtypeStruct:
  """Returns the saved shape, replicated over the mesh of `leaf`."""
  if source not in saved:
    return leaf  # `checkpoint.read` reports it as missing.
  shape, dtype = saved[source]
  sharding = leaf.sharding
  if isinstance(sharding, NamedSharding):
    sharding = NamedSharding(sharding.mesh, PartitionSpec())
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def _apply(
  value_fn: ValueFn, value: jax.Array, name: str, leaf: jax.ShapeDtypeStruct
) -> jax.Array:
  value = jnp.asarray(value_fn(value), leaf.dtype)
  if value.shape != leaf.shape:
    raise CheckpointError(
      f'{name} must have shape {list(leaf.shape)}, and the value_fn of its'
      f' restore_transformations gives {list(value.shape)}; return that shape'
    )
  return jax.device_put(value, leaf.sharding)
