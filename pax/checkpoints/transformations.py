# SPDX-License-Identifier: Apache-2.0
"""Reads a state whose leaves have other names, or other shapes, on disk.

`task.train.restore_transformations` has, by a regex on the path of a leaf such
as `mdl_vars/params/lm/softmax/w`, the path it has in the checkpoint, with
groups of the regex as `match.expand` takes them, or an object with its
`original_key` and `value_fn`, as Orbax's Transform. Leaves that the checkpoint
has under their own name are taken as they are.
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
from pax.checkpoints.contract import CheckpointError

Named = Mapping[str, Any]
ValueFn = Callable[[Any], Any]


class Transformations:
  """How leaves are found in checkpoints of older models."""

  def __init__(self, rules: Mapping[str, Any] | None = None):
    """Compiles the rules.

    Raises:
      ValueError: a rule asks for a fresh value, of which there is none here.
    """
    self._rules = []
    for pattern, rule in (rules or {}).items():
      if getattr(rule, 'use_fallback', False):
        raise ValueError(
          f'restore_transformations[{pattern!r}] sets use_fallback; start from'
          ' the checkpoint with --init_from, which leaves fresh what it lacks'
        )
      key = rule if isinstance(rule, str) else rule.original_key
      value_fn = getattr(rule, 'value_fn', None)
      self._rules.append((re.compile(pattern), key, value_fn))

  def read(
    self, path: pathlib.Path, abstract: Named, *, whole: bool = True
  ) -> tuple[Named, Mapping[str, str]]:
    """As `Layout.read`, with the leaves that the rules find for others.

    Raises:
      CheckpointError: a leaf is missing, or of another shape or dtype.
    """
    layout = layouts.layout_at(path)
    if not self._rules:
      return layout.read(path, abstract, whole=whole)
    saved = layout.shapes(path)
    found = {name: self._find(name, saved) for name in abstract}
    wanted = {}
    for name, (source, value_fn) in found.items():
      leaf = abstract[name]
      wanted[source] = leaf if value_fn is None else _whole(saved, source, leaf)
    read, inputs = layout.read(path, wanted, whole=False)
    made = {
      name: read[source] if fn is None else _made(fn, read[source], name, leaf)
      for (name, (source, fn)), leaf in zip(
        found.items(), abstract.values(), strict=True
      )
    }
    return made, inputs

  def _find(
    self, name: str, saved: layouts.Shapes
  ) -> tuple[str, ValueFn | None]:
    """The leaf on disk that becomes `name`, and what is done to it."""
    if name in saved:
      return name, None
    slashed = name.replace('.', '/')
    for pattern, key, value_fn in self._rules:
      if match := pattern.fullmatch(slashed):
        source = match.expand(key) if key else slashed
        return source.replace('/', '.'), value_fn
    return name, None


def _whole(
  saved: layouts.Shapes, source: str, leaf: jax.ShapeDtypeStruct
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
