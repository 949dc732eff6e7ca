# SPDX-License-Identifier: Apache-2.0
"""Which results of a jaxpr's equations XLA puts into memory on a TPU.

Elementwise operations are computed where their result is wanted, however often
that is: to read an array again costs more than to compute. What is stored is

- the result of a product, a reduction, a loop: of a product with what follows
  it alone, where that is narrowest (logits in bfloat16, before they are made
  float32 to be capped and summed);
- the exponentials of a softmax that products and a sum want: their rows are
  done at once, maximum and all;
- what several products want, or products and a sum, and is of several arrays,
  or has to be gone through for the sum anyway;
- what loops and branches take.

Read from compiled steps: see docs/aot.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pax.aot import equations, parts

# Give the same numbers again and again; nobody stores them.
_REPEATING = frozenset({'broadcast_in_dim', 'iota'})
# A softmax is one operation up to (batch, heads, queries, keys).
_RANK_OF_SOFTMAX = 4


@dataclasses.dataclass(frozen=True)
class Stored:
  """What is in memory."""

  # Its variables, and the equation from which on each is.
  begins: dict[Any, int]
  # Of them those that are made together with sums of them, which keeps them
  # from being put where an operand was.
  beside_sums: set[Any]


def stored(
  eqns: Sequence[Any], results: Sequence[Any], lie: parts.Parts
) -> Stored:
  """Returns what is in memory."""
  return _Fusion(eqns, results, lie).found()


@dataclasses.dataclass
class _Chain:
  """A product and the operations that follow it alone."""

  begins: int
  links: list[Any]

  def narrowest(self) -> Any:
    """The last of its links with the fewest bytes."""
    return min(reversed(self.links), key=equations.whole_bytes)


@dataclasses.dataclass
class _Reached:
  """Who takes a value that is not stored."""

  # Products, by their equations; those behind mere views of it.
  products: set[int] = dataclasses.field(default_factory=set)
  nearby: set[int] = dataclasses.field(default_factory=set)
  # Whether it is summed up or the like.
  reduced: bool = False


class _Fusion:
  """Decides for the equations of one computation."""

  def __init__(
    self, eqns: Sequence[Any], results: Sequence[Any], lie: parts.Parts
  ):
    self._eqns = eqns
    self._lie = lie
    self._wanted = set(results)
    self._beside_sums: set[Any] = set()
    self._users: dict[Any, list[int]] = {}
    for i, eqn in enumerate(eqns):
      for variable in set(equations.variables(eqn.invars)):
        self._users.setdefault(variable, []).append(i)
      if eqn.primitive.name in equations.LOOPS_AND_BRANCHES:
        self._wanted.update(equations.variables(eqn.invars))

  def found(self) -> Stored:
    made = self._whole()
    made |= self._of_chains()
    self._add_shared(made)
    begins = {
      variable: i for variable, i in made.items()
      if equations.is_array(variable) and not self._is_in_place(variable, i)
    }  # fmt: skip
    return Stored(begins, self._beside_sums)

  def _name(self, i: int) -> str:
    return self._eqns[i].primitive.name

  def _is_whole(self, i: int) -> bool:
    return self._name(i) in equations.WHOLE

  def _is_in_place(self, variable: Any, i: int) -> bool:
    """Whether it is the new value of a variable, put where the old one was."""
    fused_or_chosen = self._name(i) == 'cond' or not self._is_whole(i)
    return fused_or_chosen and self._lie.is_state(variable.aval)

  def _whole(self) -> dict[Any, int]:
    """What is no product and stored by what it is, or by who wants it."""
    made = {}
    for i, eqn in enumerate(self._eqns):
      name = eqn.primitive.name
      for variable in eqn.outvars:
        is_whole = name in equations.WHOLE and name not in equations.PRODUCTS
        wanted = variable in self._wanted and name not in _REPEATING
        if is_whole or wanted or self._is_copied_part(i):
          made[variable] = i
    return made

  def _is_copied_part(self, i: int) -> bool:
    """Whether all that is wanted of an array is a part of it."""
    eqn = self._eqns[i]
    if eqn.primitive.name not in ('slice', 'dynamic_slice'):
      return False
    source = eqn.invars[0]
    alone = self._users.get(source) == [i] and source not in self._wanted
    return alone and len(self._users.get(eqn.outvars[0], [])) > 1

  def _of_chains(self) -> dict[Any, int]:
    """Of products with what follows them, that which is stored."""
    chains: dict[Any, _Chain] = {}
    made = {}
    for i, eqn in enumerate(self._eqns):
      chain = None
      if eqn.primitive.name in equations.PRODUCTS:
        chain = _Chain(i, [])
      elif not self._is_whole(i) and len(eqn.outvars) == 1:
        coming = [v for v in equations.variables(eqn.invars) if v in chains]
        coming.sort(key=lambda v: chains[v].begins)
        # The product that is computed last takes the others' results.
        for variable in coming:
          chain = chains.pop(variable)
          if variable is not coming[-1]:
            made[chain.narrowest()] = chain.begins
      if chain is None:
        continue
      (variable,) = eqn.outvars
      chain.links.append(variable)
      if self._goes_on(variable):
        chains[variable] = chain
      elif variable not in self._wanted:
        made[chain.narrowest()] = chain.begins
      else:
        made[variable] = chain.begins
    for chain in chains.values():
      made[chain.narrowest()] = chain.begins
    return made

  def _goes_on(self, variable: Any) -> bool:
    users = self._users.get(variable, [])
    alone = len(users) == 1 and variable not in self._wanted
    return alone and not self._is_whole(users[0])

  def _add_shared(self, made: dict[Any, int]) -> None:
    """Adds what several want so that it is computed once, from the end on."""
    roots = self._roots(made)
    reached: dict[Any, _Reached] = {}
    for i in reversed(range(len(self._eqns))):
      if self._is_whole(i):
        continue
      for variable in self._eqns[i].outvars:
        if variable in made or not equations.is_array(variable):
          continue
        reached[variable] = found = self._reached(variable, made, reached)
        if self._is_shared(variable, i, found, roots):
          made[variable] = i
          if found.reduced:
            self._beside_sums.add(variable)

  def _reached(
    self, variable: Any, made: dict[Any, int], reached: dict[Any, _Reached]
  ) -> _Reached:
    found = _Reached()
    for i in self._users.get(variable, []):
      name = self._name(i)
      if name in equations.PRODUCTS:
        found.products.add(i)
        found.nearby.add(i)
      elif name in equations.REDUCTIONS:
        found.reduced = True
      elif not self._is_whole(i):
        for result in self._eqns[i].outvars:
          further = reached.get(result)
          if further is None or result in made:
            continue
          found.products |= further.products
          if name in equations.VIEWS:
            found.nearby |= further.nearby
            found.reduced |= further.reduced
    return found

  def _is_shared(
    self,
    variable: Any,
    i: int,
    found: _Reached,
    roots: dict[Any, frozenset[Any]],
  ) -> bool:
    is_softmax = self._name(i) == 'exp' and found.reduced and found.products
    if is_softmax and 1 < len(variable.aval.shape) <= _RANK_OF_SOFTMAX:
      return not self._lie.axes(tuple(variable.aval.shape))[-1]
    if found.reduced and found.nearby:
      return True
    if len(found.nearby) < 2:
      return False
    size = self._lie.num_bytes(variable)
    large = [
      root for root in roots[variable]
      if 2 * self._lie.num_bytes(root) >= size
    ]  # fmt: skip
    return len(large) > 1

  def _roots(self, made: dict[Any, int]) -> dict[Any, frozenset[Any]]:
    """The arrays in memory that a value is computed from."""
    roots: dict[Any, frozenset[Any]] = {}
    for eqn in self._eqns:
      read: set[Any] = set()
      for variable in equations.variables(eqn.invars):
        if variable in roots and variable not in made:
          read |= roots[variable]
        elif equations.is_array(variable):
          read.add(variable)
      for variable in eqn.outvars:
        roots[variable] = frozenset(read)
    return roots
