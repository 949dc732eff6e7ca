# SPDX-License-Identifier: Apache-2.0
"""In how many parts the arrays of a step lie, told by their shapes."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pax import partitioning
from pax.aot import equations

Axes = tuple[tuple[str, ...], ...]


class Parts:
  """Which mesh axes split the dimensions of an array.

  One of the shape of a variable, or of one layer of it, lies as the variable
  does. Others have the axes that constraints name for dimensions of that size.
  """

  def __init__(self, jaxpr: Any, partitioner: partitioning.Partitioner):
    self._mesh = dict(partitioner.mesh.shape)
    self._like: dict[tuple[int, ...], Axes] = {}
    leaves = jax.tree.leaves(partitioner.state_metadata)
    self._state = {(tuple(leaf.shape), leaf.dtype) for leaf in leaves}
    for leaf in leaves:
      axes = _padded(leaf.sharding.spec, len(leaf.shape))
      self._like.setdefault(tuple(leaf.shape), axes)
      if len(leaf.shape) > 2 and not axes[0]:
        self._like.setdefault(tuple(leaf.shape[1:]), axes[1:])
    votes: dict[int, collections.Counter[tuple[str, ...]]] = {}
    inputs = jax.tree.leaves(partitioner.input_spec)
    placed = [(x.shape, x.sharding) for x in inputs]
    for shape, sharding in [*placed, *_constraints(jaxpr)]:
      if isinstance(sharding, NamedSharding):
        for size, axes in zip(shape, sharding.spec, strict=False):
          if axes is not PartitionSpec.UNCONSTRAINED:
            found = votes.setdefault(size, collections.Counter())
            found[_named(axes)] += 1
    self._axes = {
      size: max(found, key=lambda axes: (bool(axes), found[axes]))
      for size, found in votes.items()
    }

  def is_state(self, aval: Any) -> bool:
    """Whether an array of the state is of that type."""
    shape = tuple(getattr(aval, 'shape', ()))
    return len(shape) > 1 and (shape, aval.dtype) in self._state

  def axes(self, shape: tuple[int, ...]) -> Axes:
    """The mesh axes that split each dimension of an array of that shape."""
    if shape in self._like:
      return self._like[shape]
    found, used = [], set()
    for size in shape:
      split = []
      for axis in self._axes.get(size, ()):
        if axis not in used and size % self._mesh[axis] == 0:
          used.add(axis)
          split.append(axis)
      found.append(tuple(split))
    return tuple(found)

  def size(self, axes: tuple[str, ...]) -> int:
    """In how many parts these axes split."""
    return math.prod(self._mesh[axis] for axis in axes)

  def num_bytes(self, variable: Any) -> float:
    """Bytes of an array on one device."""
    axes = self.axes(tuple(variable.aval.shape))
    return equations.whole_bytes(variable) / self.size(sum(axes, ()))


def _named(axes: Any) -> tuple[str, ...]:
  return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _padded(spec: Any, rank: int) -> Axes:
  named = [_named(axes) for axes in spec]
  return tuple(named + [()] * (rank - len(named)))


def _constraints(jaxpr: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
  """Shape and sharding of each sharding constraint, at any depth."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'sharding_constraint':
      yield eqn.outvars[0].aval.shape, eqn.params['sharding']
    for called in equations.inner(eqn):
      yield from _constraints(called)
