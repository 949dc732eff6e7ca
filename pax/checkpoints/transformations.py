# SPDX-License-Identifier: Apache-2.0
"""Reads a state whose leaves have other names, or other shapes, on disk.

`task.train.restore_transformations` has, by a regex on the path of a leaf such
as `mdl_vars/params/lm/softmax/w`, the path it has in the checkpoint, with
groups of the regex as `match.expand` takes them, or an object with its
`original_key`, `value_fn` and `use_fallback`, as Orbax's Transform. Leaves that
the checkpoint has under their own name are taken as they are, so that a job
goes on from checkpoints of its own. With `use_fallback` a leaf that it lacks,
or has in another shape, keeps its fresh value.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pax.checkpoints import layouts
from pax.checkpoints.types import CheckpointError, Shapes

Named = Mapping[str, Any]
ValueFn = Callable[[Any], Any]
Rules = Mapping[str, Any]


class Transformations:
  """How leaves are found in checkpoints of older models."""

  def __init__(self, rules: Rules | None = None):
    """Compiles the rules."""
    self._fresh = [re.compile(p) for p in rules or {} if _is_fresh(rules[p])]
    self._rules = []
    for pattern, rule in (rules or {}).items():
      if not _is_fresh(rule):
        key = rule if isinstance(rule, str) else rule.original_key
        value_fn = getattr(rule, 'value_fn', None)
        self._rules.append((re.compile(pattern), key, value_fn))

  def read(
    self, path: pathlib.Path, abstract: Named, *, is_full: bool = True
  ) -> tuple[Named, Mapping[str, str]]:
    """As `Layout.read`, with the leaves that the rules find for others.

    Leaves of `abstract` that are to keep fresh values are arrays.

    Raises:
      CheckpointError: a leaf is missing, or of another shape or dtype.
    """
    layout = layouts.layout_at(path)
    if not (self._rules or self._fresh):
      return layout.read(path, abstract, is_full=is_full)
    saved = layout.shapes(path)
    fresh = {k: v for k, v in abstract.items() if self._is_kept(k, v, saved)}
    abstract = {k: v for k, v in abstract.items() if k not in fresh}
    found = {name: self._find(name, saved) for name in abstract}
    wanted = {}
    for name, (source, value_fn) in found.items():
      leaf = abstract[name]
      wanted[source] = leaf if value_fn is None else _whole(saved, source, leaf)
    read, inputs = layout.read(path, wanted, is_full=False)
    made = {
      name: read[source] if fn is None else _made(fn, read[source], name, leaf)
      for (name, (source, fn)), leaf in zip(
        found.items(), abstract.values(), strict=True
      )
    }
    return made | fresh, inputs

  def _is_kept(self, name: str, leaf: Any, saved: Shapes) -> bool:
    """Whether a leaf has a fresh value that nothing on disk replaces."""
    if name in saved and tuple(saved[name][0]) == tuple(leaf.shape):
      return False
    slashed = name.replace('.', '/')
    return isinstance(leaf, jax.Array) and any(
      pattern.fullmatch(slashed) for pattern in self._fresh
    )

  def _find(self, name: str, saved: Shapes) -> tuple[str, ValueFn | None]:
    """The leaf on disk that becomes `name`, and what is done to it."""
    if name in saved:
      return name, None
    slashed = name.replace('.', '/')
    for pattern, key, value_fn in self._rules:
      if match := pattern.fullmatch(slashed):
        source = match.expand(key) if key else slashed
        return source.replace('/', '.'), value_fn
    return name, None


def needs_fresh(rules: Rules | None) -> bool:
  """Whether leaves may keep fresh values: there must be some to keep."""
  return any(map(_is_fresh, (rules or {}).values()))


def _is_fresh(rule: Any) -> bool:
  return bool(getattr(rule, 'use_fallback', False))


def _whole(
  saved: Shapes, source: str, leaf: jax.ShapeDtypeStruct
) -> jax.ShapeDtypeStruct:
  """A leaf as it is on disk, on every device of the mesh it is made for."""
  if source not in saved:
    return leaf  # Reading says that it is missing.
  shape, dtype = saved[source]
  sharding = leaf.sharding
  if isinstance(sharding, NamedSharding):
    sharding = NamedSharding(sharding.mesh, PartitionSpec())
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def _made(
  value_fn: ValueFn, value: Any, name: str, leaf: jax.ShapeDtypeStruct
) -> jax.Array:
  value = jnp.asarray(value_fn(value), leaf.dtype)
  if value.shape != leaf.shape:
    raise CheckpointError(
      f'{name} must have shape {list(leaf.shape)}, and the value_fn of its'
      f' restore_transformations gives {list(value.shape)}'
    )
  return jax.device_put(value, leaf.sharding)
