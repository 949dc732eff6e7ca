# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a step from a liveness analysis of its jaxpr.

Takes seconds instead of the minutes of a compilation. It sums the shards that
are alive at each equation: the values that `fusion` materializes, from their
allocation to their last use, and the buffers of implicit collectives. Three
schedules are analyzed, and the one with the lowest peak is taken, as XLA's
scheduler does: as traced, with weights gathered once or for each matmul outside
of loops, and as late as possible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from jax.extend import core as jex_core

from pax import partitioning
from pax.aot.jaxpr import (
  array_shardings,
  fusion,
  implicit_all_gathers,
  jaxpr_walk,
)
from pax.aot.jaxpr.jaxpr_walk import Atom, Var
from praxis import py_utils
from praxis.py_utils import jaxprs


@dataclasses.dataclass(frozen=True)
class LiveArray:
  """An array in memory."""

  # Bytes on one device.
  num_bytes: float
  # dtype and global shape, as float32[16, 32].
  type_text: str
  # Name stack and primitive of the operation that allocates it.
  op_name: str
  # Whether a forward scan stacks it for the backward pass.
  is_saved_activation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeakMemory:
  """Bytes on one device at the peak of a step, without state and batch."""

  # Stacked by scans of the forward pass for the backward pass.
  saved_activations: float
  # Everything else.
  temporaries: float
  # What is alive at the peak, the largest first.
  arrays: list[LiveArray]


def estimate_peak_memory(
  jaxpr: jex_core.Jaxpr, partitioner: partitioning.Partitioner
) -> PeakMemory:
  """Returns the estimated peak memory of a train step on one device."""
  shardings = array_shardings.ArrayShardings(jaxpr, partitioner)
  # Both schedules as traced share the peaks of loops.
  as_traced = _LivenessAnalysis(shardings, is_alap=False)
  as_late = _LivenessAnalysis(shardings, is_alap=True)
  peaks = [
    as_traced.peak(jaxpr, hoist=True),
    as_traced.peak(jaxpr, hoist=False),
    as_late.peak(jaxpr, hoist=False),
  ]
  peak = min(peaks, key=lambda p: p.num_bytes)
  saved = sum(a.num_bytes for a in peak.arrays if a.is_saved_activation)
  return PeakMemory(
    saved_activations=saved,
    temporaries=peak.num_bytes - saved,
    arrays=sorted(peak.arrays, key=lambda a: -a.num_bytes),
  )


@dataclasses.dataclass(frozen=True)
class _Peak:
  """The arrays at the peak of a computation, and their bytes."""

  num_bytes: float
  arrays: list[LiveArray]


@dataclasses.dataclass(frozen=True)
class _LiveRange:
  """An array, and the first and last equation that it is alive at."""

  array: LiveArray
  first: int
  last: int


@dataclasses.dataclass(frozen=True)
class _LoopBody:
  """Operands of the jaxpr of a loop or a branch: constants, carry, the rest."""

  num_consts: int
  num_carry: int


class _LivenessAnalysis:
  """Peak memory of jaxprs and their sub-jaxprs, in one kind of schedule."""

  def __init__(
    self, shardings: array_shardings.ArrayShardings, *, is_alap: bool
  ):
    self._shardings = shardings
    self._is_alap = is_alap
    self._peaks: dict[tuple[jex_core.Jaxpr, _LoopBody | None], _Peak] = {}

  def peak(self, jaxpr: jex_core.Jaxpr, *, hoist: bool) -> _Peak:
    """Returns the peak of a step, without its arguments.

    Args:
      jaxpr: that of the step.
      hoist: whether it gathers weights once, outside of loops. In the body of
        a loop the schedule as traced does.
    """
    return self._compute_peak(jaxpr, None, hoist)

  def _compute_peak(
    self, jaxpr: jex_core.Jaxpr, body: _LoopBody | None, hoist: bool
  ) -> _Peak:
    """Returns the peak of a computation, without its arguments.

    For the `body` of a loop or branch results are left out too that are written
    to buffers of the caller: all but a carry whose previous value is still read
    after the new one is allocated.
    """
    eqns, results = jaxpr_walk.inline_calls(jaxpr)
    if self._is_alap:
      eqns = jaxpr_walk.schedule_alap(eqns, results)
    result_vars = jaxpr_walk.variables(results)
    materialized = fusion.materialized_values(
      eqns, result_vars, self._shardings
    )
    last_uses = _last_uses(eqns, materialized.start, result_vars)
    if body is not None:
      end_of_carry = body.num_consts + body.num_carry
      carry = jaxpr.invars[body.num_consts : end_of_carry]
      in_caller = _results_in_caller(
        results, carry, materialized.start, last_uses
      )
      start = {
        v: i for v, i in materialized.start.items() if v not in in_caller
      }
      materialized = dataclasses.replace(materialized, start=start)
    gathered = implicit_all_gathers.find_gathered_arrays(
      eqns, self._shardings, hoist=hoist
    )
    return self._peak_of(
      eqns,
      [
        *self._live_ranges(eqns, materialized, last_uses),
        *map(_gathered_live_range, gathered),
      ],
    )

  def _peak_of(
    self, eqns: Sequence[jex_core.JaxprEqn], live_ranges: Sequence[_LiveRange]
  ) -> _Peak:
    """Returns the peak over the equations, each with its sub-jaxprs' peak."""
    change = [0.0] * (len(eqns) + 2)
    for live_range in live_ranges:
      change[live_range.first] += live_range.array.num_bytes
      change[live_range.last + 1] -= live_range.array.num_bytes
    live_bytes, peak_bytes, peak_index, inner_arrays = 0.0, 0.0, -1, []
    for i, eqn in enumerate(eqns):
      live_bytes += change[i]
      inner = self._inner_peak(eqn)
      if live_bytes + inner.num_bytes > peak_bytes:
        peak_bytes = live_bytes + inner.num_bytes
        peak_index, inner_arrays = i, inner.arrays
    arrays = [r.array for r in live_ranges if r.first <= peak_index <= r.last]
    return _Peak(peak_bytes, [*arrays, *inner_arrays])

  def _inner_peak(self, eqn: jex_core.JaxprEqn) -> _Peak:
    """The peak of an iteration of a loop, or of the largest branch."""
    name = eqn.primitive.name
    if name not in jaxpr_walk.CONTROL_FLOW:
      return _Peak(0.0, [])
    body = None
    if name == 'scan':
      body = _LoopBody(*jaxprs.scan_num_consts_and_carry(eqn))
    elif name == 'cond':
      body = _LoopBody(num_consts=0, num_carry=0)
    peaks = [
      self._sub_jaxpr_peak(jaxpr, body) for jaxpr in py_utils.sub_jaxprs(eqn)
    ]
    return max(peaks, key=lambda p: p.num_bytes, default=_Peak(0.0, []))

  def _sub_jaxpr_peak(
    self, jaxpr: jex_core.Jaxpr, body: _LoopBody | None
  ) -> _Peak:
    key = jaxpr, body
    if key not in self._peaks:
      self._peaks[key] = self._compute_peak(
        jaxpr, body, hoist=not self._is_alap
      )
    return self._peaks[key]

  def _live_ranges(
    self,
    eqns: Sequence[jex_core.JaxprEqn],
    materialized: fusion.Materialized,
    last_uses: Mapping[Var, int],
  ) -> list[_LiveRange]:
    """Returns the live range of each value.

    A result that takes an operand's buffer ends the operand's range.
    """
    allocated_at: dict[int, list[Var]] = {}
    last_used_at: dict[int, list[Var]] = {}
    for variable, i in materialized.start.items():
      allocated_at.setdefault(i, []).append(variable)
      last_used_at.setdefault(last_uses.get(variable, i), []).append(variable)
    live_ranges: dict[Var, _LiveRange] = {}
    for i, eqn in enumerate(eqns):
      reusable = {
        v: live_ranges[v].array.num_bytes
        for v in last_used_at.get(i, ())
        if v in live_ranges
      }
      for variable in allocated_at.get(i, ()):
        array = self._live_array(variable, eqn)
        if variable not in materialized.fused_with_reduction:
          operand = _reused_operand(variable, array.num_bytes, eqn, reusable)
          if operand is not None:
            del reusable[operand]
            live_ranges[operand] = dataclasses.replace(
              live_ranges[operand], last=i - 1
            )
        last = min(last_uses.get(variable, i), len(eqns))
        live_ranges[variable] = _LiveRange(array, i, last)
    return list(live_ranges.values())

  def _live_array(self, variable: Var, eqn: jex_core.JaxprEqn) -> LiveArray:
    is_stacked = False
    if eqn.primitive.name == 'scan' and not eqn.params['reverse']:
      _, num_carry = jaxprs.scan_num_consts_and_carry(eqn)
      is_stacked = eqn.outvars.index(variable) >= num_carry
    return LiveArray(
      self._shardings.bytes_per_device(variable),
      jaxpr_walk.type_text(variable),
      jaxpr_walk.op_name(eqn),
      is_saved_activation=is_stacked and len(jaxpr_walk.shape(variable)) > 1,
    )


def _gathered_live_range(
  gathered: implicit_all_gathers.GatheredArray,
) -> _LiveRange:
  array = LiveArray(
    gathered.num_bytes,
    gathered.type_text,
    f'all-gather or partial sum of {gathered.op_name}',
  )
  return _LiveRange(array, gathered.first, gathered.last)


def _results_in_caller(
  results: Sequence[Atom],
  carry: Sequence[Var],
  start: Mapping[Var, int],
  last_uses: Mapping[Var, int],
) -> set[Var]:
  """Results of a loop body that are written to the caller's buffers."""
  in_caller = set()
  for k, result in enumerate(results):
    if not jaxpr_walk.is_variable(result) or result not in start:
      continue
    previous = carry[k] if k < len(carry) else None
    if previous is None or last_uses.get(previous, -1) <= start[result]:
      in_caller.add(result)
  return in_caller


def _reused_operand(
  variable: Var,
  num_bytes: float,
  eqn: jex_core.JaxprEqn,
  reusable: Mapping[Var, float],
) -> Var | None:
  """Returns the operand whose buffer a result takes, or None.

  It is one of the same size: any operand of an elementwise operation, the
  updated operand of an update, the initial value of a carry.

  Args:
    variable: the result.
    num_bytes: of the result on one device.
    eqn: the equation that computes it.
    reusable: bytes of the arrays that the equation reads last.
  """
  name = eqn.primitive.name
  if name in ('scan', 'while'):
    candidates = _initial_carry(eqn, variable)
  elif name in ('dynamic_update_slice', 'scatter', 'scatter-add'):
    candidates = eqn.invars[:1]
  elif name in jaxpr_walk.NON_ELEMENTWISE:
    return None
  else:
    candidates = list(reusable)
  for candidate in jaxpr_walk.variables(candidates):
    if reusable.get(candidate) == num_bytes:
      return candidate
  return None


def _initial_carry(eqn: jex_core.JaxprEqn, variable: Var) -> list[Atom]:
  """The operand that initializes a result of a loop; [] if it is stacked."""
  k = eqn.outvars.index(variable)
  if eqn.primitive.name == 'scan':
    num_consts, num_carry = jaxprs.scan_num_consts_and_carry(eqn)
    return [eqn.invars[num_consts + k]] if k < num_carry else []
  num_consts = eqn.params['cond_nconsts'] + eqn.params['body_nconsts']
  return [eqn.invars[num_consts + k]]


def _last_uses(
  eqns: Sequence[jex_core.JaxprEqn],
  start: Mapping[Var, int],
  results: Sequence[Var],
) -> dict[Var, int]:
  """Maps each array in memory to its last read, also by fused operations.

  An array that a result depends on through fused operations is read at the end,
  `len(eqns)`.
  """
  # Arrays in memory that a fused value is computed from.
  sources: dict[Var, frozenset[Var]] = {}
  last_uses: dict[Var, int] = {}
  for i, eqn in enumerate(eqns):
    reads = set(_memory_reads(eqn, sources))
    # A matmul that is not materialized runs where the last value of its
    # epilogue is: its consumers do not read its operands.
    is_matmul = eqn.primitive.name in jaxpr_walk.CONTRACTIONS
    for variable in eqn.outvars:
      if variable not in start:
        sources[variable] = frozenset() if is_matmul else frozenset(reads)
    for variable in reads:
      last_uses[variable] = i
  for result in results:
    for variable in [result] if result in start else sources.get(result, ()):
      last_uses[variable] = len(eqns)
  return last_uses


def _memory_reads(
  eqn: jex_core.JaxprEqn, sources: Mapping[Var, frozenset[Var]]
) -> Iterator[Var]:
  for variable in jaxpr_walk.variables(eqn.invars):
    if variable in sources:
      yield from sources[variable]
    else:
      yield variable
