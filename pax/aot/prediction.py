# SPDX-License-Identifier: Apache-2.0
"""What a step will hold beside its state, told from its jaxpr in a moment.

The compiler knows better and takes minutes. This follows what is alive from
operation to operation, one device's part of each array. Elementwise operations
are taken to be fused into who wants their result, as XLA does.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pax import partitioning

# Results of these are in memory; of all others only where somebody must have
# them so.
_MADE = frozenset({
  'argmax', 'argmin', 'concatenate', 'conv_general_dilated', 'cumsum', 'cond',
  'dot_general', 'dynamic_update_slice', 'gather', 'ragged_dot_general',
  'random_bits', 'reduce_and', 'reduce_max', 'reduce_min', 'reduce_or',
  'reduce_prod', 'reduce_sum', 'scan', 'scatter', 'scatter-add', 'shard_map',
  'sort', 'threefry2x32', 'top_k', 'while',
})  # fmt: skip
# Not computed twice where two want the result.
_DEAR = frozenset({
  'cos', 'div', 'erf', 'exp', 'exp2', 'expm1', 'log', 'log1p', 'logistic',
  'pow', 'rsqrt', 'sin', 'sqrt', 'tanh',
})  # fmt: skip
_PRODUCTS = frozenset({
  'conv_general_dilated', 'dot_general', 'ragged_dot_general',
})  # fmt: skip
# Take arrays as they are in memory.
_TAKES_ARRAYS = frozenset({'scan', 'while', 'cond', 'shard_map'})
_CALLS = frozenset({
  'checkpoint', 'closed_call', 'core_call', 'custom_jvp_call',
  'custom_vjp_call', 'jit', 'pjit', 'remat2',
})  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
  """Bytes on one device, beside the state and the batch."""

  # What loops of the forward pass stack for those of the backward pass.
  activations: float
  # All else that is alive when most is.
  temporaries: float
  # The largest that are alive then: bytes, shape with dtype, what makes it.
  largest: list[tuple[float, str, str]]


def predict(jaxpr: Any, partitioner: partitioning.Partitioner) -> Predicted:
  """Returns what the train step `jaxpr` holds."""
  walk = _Walk(_Parts(jaxpr, partitioner))
  alive, peak = walk.peak(jaxpr)
  kept = sum(one.num_bytes for one in alive if one.is_kept)
  largest = sorted(alive, key=lambda one: -one.num_bytes)
  return Predicted(
    activations=kept,
    temporaries=peak - kept,
    largest=[(one.num_bytes, one.shape, one.made_by) for one in largest],
  )


@dataclasses.dataclass(frozen=True)
class _Alive:
  """One array in memory."""

  num_bytes: float
  shape: str
  made_by: str
  # Whether a loop stacked it.
  is_kept: bool


class _Parts:
  """In how many parts arrays lie, by their shapes.

  Those of the shape of a variable, or of one layer of it, lie as the variable
  does. Others have the parts that constraints name for dimensions of that size.
  """

  def __init__(self, jaxpr: Any, partitioner: partitioning.Partitioner):
    self._mesh = dict(partitioner.mesh.shape)
    self._like: dict[tuple[int, ...], int] = {}
    leaves = jax.tree.leaves(partitioner.state_metadata)
    self._state = {(tuple(leaf.shape), leaf.dtype) for leaf in leaves}
    for leaf in leaves:
      shard = leaf.sharding.shard_shape(leaf.shape)
      parts = math.prod(leaf.shape) // max(1, math.prod(shard))
      self._like.setdefault(tuple(leaf.shape), parts)
      if len(leaf.shape) > 2 and leaf.shape[0] == shard[0]:
        self._like.setdefault(tuple(leaf.shape[1:]), parts)
    votes: dict[int, collections.Counter[tuple[str, ...]]] = {}
    inputs = jax.tree.leaves(partitioner.input_spec)
    placed = [(x.shape, x.sharding) for x in inputs]
    for shape, sharding in [*placed, *_constraints(jaxpr)]:
      if isinstance(sharding, NamedSharding):
        for size, axes in zip(shape, sharding.spec, strict=False):
          if axes is not PartitionSpec.UNCONSTRAINED:
            named = (axes,) if isinstance(axes, str) else tuple(axes or ())
            votes.setdefault(size, collections.Counter())[named] += 1
    self._axes = {
      size: max(found, key=lambda axes: (bool(axes), found[axes]))
      for size, found in votes.items()
    }

  def is_state(self, aval: Any) -> bool:
    """Whether an array of the state is of that type."""
    shape = tuple(getattr(aval, 'shape', ()))
    return len(shape) > 1 and (shape, aval.dtype) in self._state

  def of(self, shape: tuple[int, ...]) -> int:
    """In how many parts an array of that shape is."""
    if shape in self._like:
      return self._like[shape]
    parts, used = 1, set()
    for size in shape:
      for axis in self._axes.get(size, ()):
        if axis not in used and size % self._mesh[axis] == 0:
          used.add(axis)
          parts *= self._mesh[axis]
    return parts


class _Walk:
  """Goes through a jaxpr in its order."""

  def __init__(self, parts: _Parts):
    self._parts = parts

  def peak(self, jaxpr: Any) -> tuple[list[_Alive], float]:
    """Returns what is alive when most is, and how much; not the arguments."""
    names: dict[Any, Any] = {}
    eqns = list(_flat(jaxpr, names))
    results = [names.get(v, v) for v in _variables(jaxpr.outvars)]
    results = _variables(results)
    made = self._made(eqns, results)
    last = _last_uses(eqns, made, results)
    alive: dict[Any, _Alive] = {}
    now, most, then = 0.0, 0.0, []
    for i, eqn in enumerate(eqns):
      for variable in eqn.outvars:
        if variable in made:
          alive[variable] = self._array(variable, eqn)
          now += alive[variable].num_bytes
      within, extra = self._within(eqn)
      if now + extra > most:
        most, then = now + extra, [*alive.values(), *within]
      for variable in [v for v in alive if last.get(v, i) <= i]:
        now -= alive.pop(variable).num_bytes
    return then, most

  def _is_in_place(self, name: str, variable: Any) -> bool:
    """Whether it is the new value of a variable, put where the old one was."""
    fused_or_chosen = name == 'cond' or name not in _MADE
    return fused_or_chosen and self._parts.is_state(variable.aval)

  def _within(self, eqn: Any) -> tuple[list[_Alive], float]:
    """What one round of a loop, or a branch, holds meanwhile."""
    if eqn.primitive.name not in _TAKES_ARRAYS:
      return [], 0.0
    found = [self.peak(inner) for inner in _inner(eqn)]
    return max(found, key=lambda pair: pair[1], default=([], 0.0))

  def _array(self, variable: Any, eqn: Any) -> _Alive:
    aval = variable.aval
    whole = math.prod(aval.shape) * aval.dtype.itemsize
    is_kept = False
    if eqn.primitive.name == 'scan' and not eqn.params['reverse']:
      # What is carried has the shape that a round gives, what is kept one more
      # dimension. Parameters that count them are not in every JAX.
      (called,) = _inner(eqn)
      given = called.outvars[eqn.outvars.index(variable)]
      is_kept = len(aval.shape) > len(given.aval.shape)
    return _Alive(
      whole / self._parts.of(tuple(aval.shape)),
      f'{aval.dtype}{list(aval.shape)}',
      _origin(eqn),
      is_kept and len(aval.shape) > 1,
    )

  def _made(self, eqns: Sequence[Any], results: Sequence[Any]) -> set[Any]:
    """The variables that are in memory, none that is fused away.

    An operation that alone wants a product is fused to it: what is in memory is
    the last of such a chain, not the product.
    """
    users: dict[Any, list[str]] = {}
    wanted = set(results)
    for eqn in eqns:
      for variable in set(_variables(eqn.invars)):
        users.setdefault(variable, []).append(eqn.primitive.name)
      if eqn.primitive.name in _TAKES_ARRAYS:
        wanted.update(_variables(eqn.invars))
    made, carried = set(), set()
    for eqn in eqns:
      name = eqn.primitive.name
      is_carried = name in _PRODUCTS or (
        name not in _MADE and any(v in carried for v in _variables(eqn.invars))
      )
      for variable in eqn.outvars:
        used = users.get(variable, [])
        goes_on = len(used) == 1 and used[0] not in _MADE
        if is_carried and goes_on and variable not in wanted:
          carried.add(variable)
          continue
        several = len(used) > 1 and (name in _DEAR or _reduced(used))
        is_made = name in _MADE or is_carried or several or variable in wanted
        if is_made and not self._is_in_place(name, variable):
          made.add(variable)
    return {v for v in made if hasattr(v.aval, 'dtype') and _plain(v.aval)}


def _last_uses(
  eqns: Sequence[Any], made: set[Any], results: Sequence[Any]
) -> dict[Any, int]:
  """When each array in memory is read last, also by what is fused."""
  sources: dict[Any, frozenset[Any]] = {}
  last: dict[Any, int] = {}
  for i, eqn in enumerate(eqns):
    read: set[Any] = set()
    for variable in _variables(eqn.invars):
      if variable in made:
        read.add(variable)
      read |= sources.get(variable, frozenset())
    for variable in eqn.outvars:
      if variable not in made:
        sources[variable] = frozenset(read)
    for variable in read:
      last[variable] = i
  for variable in results:
    last[variable] = len(eqns)
  return last


def _reduced(users: Sequence[str]) -> bool:
  """Whether one of several users needs all before the others begin."""
  return any(name.startswith('reduce_') for name in users)


def _flat(jaxpr: Any, names: dict[Any, Any]) -> Iterator[Any]:
  """The equations, with those of called functions in their place.

  `names` is filled with who stands for a variable that a called function gives.
  """

  def named(variable: Any) -> Any:
    return names.get(variable, variable) if _is_variable(variable) else variable

  for eqn in jaxpr.eqns:
    invars = [named(v) for v in eqn.invars]
    inner = list(_inner(eqn))
    if eqn.primitive.name in _CALLS and len(inner) == 1:
      called = inner[0]
      skipped = len(invars) - len(called.invars)
      within = dict(zip(called.invars, invars[skipped:], strict=True))
      yield from _flat(called, within)
      for outer, own in zip(eqn.outvars, called.outvars, strict=True):
        names[outer] = within.get(own, own) if _is_variable(own) else own
    else:
      yield eqn.replace(invars=invars)


def _inner(eqn: Any) -> Iterator[Any]:
  for name, value in eqn.params.items():
    if name in ('jvp_jaxpr_fun', 'fwd_jaxpr_thunk', 'bwd', 'cond_jaxpr'):
      continue
    for part in value if isinstance(value, list | tuple) else [value]:
      found = getattr(part, 'jaxpr', part)
      if hasattr(found, 'eqns'):
        yield found


def _constraints(jaxpr: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
  """Shape and sharding of each sharding constraint, at any depth."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'sharding_constraint':
      yield eqn.outvars[0].aval.shape, eqn.params['sharding']
    for inner in _inner(eqn):
      yield from _constraints(inner)


def _variables(found: Sequence[Any]) -> list[Any]:
  return [v for v in found if _is_variable(v)]


def _is_variable(found: Any) -> bool:
  return not hasattr(found, 'val')


def _plain(aval: Any) -> bool:
  """Whether the array has numbers, unlike those of random keys."""
  return hasattr(aval, 'shape') and hasattr(aval.dtype, 'kind')


def _origin(eqn: Any) -> str:
  stack = str(eqn.source_info.name_stack)
  return f'{stack}/{eqn.primitive.name}' if stack else eqn.primitive.name
