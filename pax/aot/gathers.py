# SPDX-License-Identifier: Apache-2.0
"""Arrays that devices put together from their parts to multiply them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from pax.aot import equations, parts


@dataclasses.dataclass(frozen=True)
class Gathered:
  """An array whose parts are gathered, alive for some equations."""

  num_bytes: float
  shape: str
  # The product that takes it.
  wanted_by: str
  first: int
  last: int


def find(
  eqns: Sequence[Any], lie: parts.Parts, *, keeps: bool
) -> list[Gathered]:
  """Returns what the products of a computation gather, or add up.

  An operand is gathered along an axis that splits what is summed over, if the
  other operand has that axis elsewhere: weights split over rows' devices, rows
  split over weights' ones. Several products take the same copy. A result that
  such a sum is of is whole before its parts are scattered.

  Where the schedule `keeps` them, all are gathered at the beginning, and sums
  are scattered when they are wanted, gradients at the end; else at once.
  """
  copies: dict[Any, Gathered] = {}
  made = {v for eqn in eqns for v in eqn.outvars}
  wanted = _first_uses(eqns)
  based: dict[Any, Any] = {}
  found = []
  for i, eqn in enumerate(eqns):
    name = eqn.primitive.name
    if name in equations.VIEWS and equations.is_variable(eqn.invars[0]):
      source = eqn.invars[0]
      based[eqn.outvars[0]] = based.get(source, source)
    if name != 'dot_general':
      continue
    origin = equations.origin(eqn)
    for variable, axes, size in _operands(eqn, lie):
      source = based.get(variable, variable)
      key = (source, axes, None if keeps else i)
      first = 0 if keeps and source not in made else i
      copy = copies.get(key) or Gathered(
        size, _shape(variable), origin, first, i
      )
      copies[key] = dataclasses.replace(copy, last=i)
    scattered = _scattered(eqn, lie)
    if scattered > 1:
      (result,) = eqn.outvars
      size = lie.num_bytes(result) * scattered
      last = wanted.get(result, len(eqns)) if keeps else i
      found.append(Gathered(size, _shape(result), origin, i, last))
  return [*found, *copies.values()]


def _first_uses(eqns: Sequence[Any]) -> dict[Any, int]:
  """Which equation is the first that cannot be fused and wants a variable."""
  found: dict[Any, int] = {}
  for i, eqn in reversed(list(enumerate(eqns))):
    uses = [found[v] for v in eqn.outvars if v in found]
    is_whole = eqn.primitive.name in equations.WHOLE
    if is_whole or uses:
      first = i if is_whole else min(uses)
      for variable in equations.variables(eqn.invars):
        found[variable] = min(first, found.get(variable, first))
  return found


def _shape(variable: Any) -> str:
  return f'{variable.aval.dtype}{list(variable.aval.shape)}'


def _operands(
  eqn: Any, lie: parts.Parts
) -> Iterator[tuple[Any, tuple[str, ...], float]]:
  """The operands that are gathered, along which axes, and their bytes then."""
  (summed, _) = eqn.params['dimension_numbers']
  operands = eqn.invars[:2]
  axes = [lie.axes(tuple(one.aval.shape)) for one in operands]
  (result,) = eqn.outvars
  of_result = set(sum(lie.axes(tuple(result.aval.shape)), ()))
  for k in (0, 1):
    mine = {axis for d in summed[k] for axis in axes[k][d]}
    theirs = {axis for d in summed[1 - k] for axis in axes[1 - k][d]}
    elsewhere = set(sum(axes[1 - k], ())) - theirs
    wanted = tuple(sorted((mine - theirs) & (elsewhere | of_result)))
    if wanted and equations.is_variable(operands[k]):
      yield operands[k], wanted, lie.num_bytes(operands[k]) * lie.size(wanted)


def _scattered(eqn: Any, lie: parts.Parts) -> int:
  """In how many parts the result is that was added up."""
  (left, right), _ = eqn.params['dimension_numbers']
  axes = [lie.axes(tuple(one.aval.shape)) for one in eqn.invars[:2]]
  summed = {a for d in left for a in axes[0][d]}
  summed &= {a for d in right for a in axes[1][d]}
  (result,) = eqn.outvars
  of_result = set(sum(lie.axes(tuple(result.aval.shape)), ()))
  return lie.size(tuple(summed & of_result))
