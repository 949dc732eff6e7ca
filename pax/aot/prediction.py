# SPDX-License-Identifier: Apache-2.0
"""What a step will hold beside its state, told from its jaxpr in a moment.

The compiler knows better and takes minutes. This follows what is alive from
operation to operation, one device's part of each array: what `fusion` says is
in memory, from where it is made to where it is read last. It does so for two
orders of operations, of which the compiler takes the one that holds less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from pax import partitioning
from pax.aot import equations, fusion, gathers, parts


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
  lie = parts.Parts(jaxpr, partitioner)
  orders = (
    _Walk(lie, comes_late=comes_late).peak(jaxpr)
    for comes_late in (False, True)
  )
  alive, peak = min(orders, key=lambda pair: pair[1])
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
  is_kept: bool = False


@dataclasses.dataclass(frozen=True)
class _Span:
  """From which equation to which an array is alive."""

  array: _Alive
  first: int
  last: int


class _Walk:
  """Goes through a jaxpr in its order."""

  def __init__(self, lie: parts.Parts, *, comes_late: bool):
    self._lie = lie
    self._comes_late = comes_late
    # The same body may be met again, in another order of what is around it.
    self._known: dict[Any, tuple[list[_Alive], float]] = {}

  def peak(
    self, jaxpr: Any, num_carried: int = 0, num_consts: int | None = None
  ) -> tuple[list[_Alive], float]:
    """Returns what is alive when most is, and how much; not the arguments.

    Of the body of a loop (with `num_consts`) nor the results: they are written
    where the caller has them, if what was carried there is not wanted any more.
    """
    key = jaxpr, num_carried, num_consts
    if key not in self._known:
      self._known[key] = self._peak(*key)
    return self._known[key]

  def _peak(
    self, jaxpr: Any, num_carried: int, num_consts: int | None
  ) -> tuple[list[_Alive], float]:
    eqns, results = equations.flat(jaxpr)
    if self._comes_late:
      eqns = equations.late(eqns, results)
    wanted = equations.variables(results)
    stored = fusion.stored(eqns, wanted, self._lie)
    begins = stored.begins
    last = _last_uses(eqns, begins, wanted)
    if num_consts is not None:
      carried = jaxpr.invars[num_consts : num_consts + num_carried]
      self._drop_placed(begins, last, results, carried)
    spans = self._spans(eqns, stored, last)
    for one in gathers.find(eqns, self._lie, keeps=not self._comes_late):
      whole = _Alive(one.num_bytes, one.shape, f'all parts for {one.wanted_by}')
      spans.append(_Span(whole, one.first, one.last))
    return self._largest(eqns, spans)

  def _largest(
    self, eqns: Sequence[Any], spans: Sequence[_Span]
  ) -> tuple[list[_Alive], float]:
    """What is alive, and how much, at the equation where that is most."""
    change = [0.0] * (len(eqns) + 2)
    for span in spans:
      change[span.first] += span.array.num_bytes
      change[span.last + 1] -= span.array.num_bytes
    now, most, at, then = 0.0, 0.0, -1, []
    for i, eqn in enumerate(eqns):
      now += change[i]
      within, extra = self._within(eqn)
      if now + extra > most:
        most, at, then = now + extra, i, within
    alive = [span.array for span in spans if span.first <= at <= span.last]
    return [*alive, *then], most

  def _spans(
    self, eqns: Sequence[Any], stored: fusion.Stored, last: dict[Any, int]
  ) -> list[_Span]:
    """From where to where each array is alive."""
    found: dict[Any, _Span] = {}
    made_at: dict[int, list[Any]] = {}
    read_last: dict[int, list[Any]] = {}
    for variable, i in stored.begins.items():
      made_at.setdefault(i, []).append(variable)
      read_last.setdefault(last.get(variable, i), []).append(variable)
    for i, eqn in enumerate(eqns):
      free = [v for v in read_last.get(i, ()) if v in found]
      for variable in made_at.get(i, ()):
        array = self._array(variable, eqn)
        if variable not in stored.beside_sums:
          if place := _place(variable, array, eqn, free, found):
            free.remove(place)
            found[place] = dataclasses.replace(found[place], last=i - 1)
        end = min(last.get(variable, i), len(eqns))
        found[variable] = _Span(array, i, end)
    return list(found.values())

  def _within(self, eqn: Any) -> tuple[list[_Alive], float]:
    """What one round of a loop, or a branch, holds meanwhile."""
    name = eqn.primitive.name
    if name not in equations.LOOPS_AND_BRANCHES:
      return [], 0.0
    carried, consts = 0, None
    if name == 'scan':
      consts, carried = equations.scan_counts(eqn)
    elif name == 'cond':
      consts = 0
    found = [
      self.peak(called, carried, consts) for called in equations.inner(eqn)
    ]
    return max(found, key=lambda pair: pair[1], default=([], 0.0))

  def _drop_placed(
    self,
    begins: dict[Any, int],
    last: dict[Any, int],
    results: Sequence[Any],
    carried: Sequence[Any],
  ) -> None:
    """Takes from what is made the results that have their place already."""
    for k, result in enumerate(results):
      if not equations.is_variable(result) or result not in begins:
        continue
      before = carried[k] if k < len(carried) else None
      if before is None or last.get(before, -1) <= begins[result]:
        del begins[result]

  def _array(self, variable: Any, eqn: Any) -> _Alive:
    aval = variable.aval
    is_kept = False
    if eqn.primitive.name == 'scan' and not eqn.params['reverse']:
      _, carried = equations.scan_counts(eqn)
      is_kept = eqn.outvars.index(variable) >= carried
    return _Alive(
      self._lie.num_bytes(variable),
      f'{aval.dtype}{list(aval.shape)}',
      equations.origin(eqn),
      is_kept and len(aval.shape) > 1,
    )


def _place(
  variable: Any,
  array: _Alive,
  eqn: Any,
  free: Sequence[Any],
  found: dict[Any, _Span],
) -> Any | None:
  """Returns which of what is read here last an array is put in the place of.

  That is one of its size that an elementwise operation reads, or the first
  value of what a loop carries.
  """
  name = eqn.primitive.name
  if name in ('scan', 'while'):
    may = [_carried(eqn, variable)]
  elif name in ('dynamic_update_slice', 'scatter', 'scatter-add'):
    may = eqn.invars[:1]
  elif name in equations.WHOLE:
    return None
  else:
    may = free
  for one in may:
    if one in free and found[one].array.num_bytes == array.num_bytes:
      return one
  return None


def _carried(eqn: Any, variable: Any) -> Any:
  """What a loop begins with in the place of one of its results."""
  k = eqn.outvars.index(variable)
  if eqn.primitive.name == 'scan':
    skipped, carried = equations.scan_counts(eqn)
    return eqn.invars[skipped + k] if k < carried else None
  skipped = eqn.params['cond_nconsts'] + eqn.params['body_nconsts']
  return eqn.invars[skipped + k]


def _last_uses(
  eqns: Sequence[Any], made: dict[Any, int], results: Sequence[Any]
) -> dict[Any, int]:
  """When each array in memory is read last, also by what is fused."""
  sources: dict[Any, frozenset[Any]] = {}
  last: dict[Any, int] = {}
  for i, eqn in enumerate(eqns):
    read = set(_read(eqn, made, sources))
    # Of a product that is not stored the end of its chain is, in its place.
    is_product = eqn.primitive.name in equations.PRODUCTS
    for variable in eqn.outvars:
      if variable not in made:
        sources[variable] = frozenset() if is_product else frozenset(read)
    for variable in read:
      last[variable] = i
  for variable in results:
    for one in [variable] if variable in made else sources.get(variable, ()):
      last[one] = len(eqns)
  return last


def _read(
  eqn: Any, made: dict[Any, int], sources: dict[Any, frozenset[Any]]
) -> Iterator[Any]:
  for variable in equations.variables(eqn.invars):
    if variable in sources:
      yield from sources[variable]
    else:
      yield variable
