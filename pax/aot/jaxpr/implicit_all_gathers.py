# SPDX-License-Identifier: Apache-2.0
"""All-gathers and reduce-scatters that the partitioner inserts for matmuls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from jax.extend import core as jex_core

from pax.aot.jaxpr import array_shardings, jaxpr_walk


@dataclasses.dataclass(frozen=True)
class GatheredArray:
  """A gathered operand or an unscattered partial sum, and when it is alive."""

  num_bytes: float
  # dtype and shape, as float32[16, 32].
  type_text: str
  # Name of the matmul.
  op_name: str
  # Indices of the first and the last equation that it is alive at.
  first: int
  last: int


def find_gathered_arrays(
  eqns: Sequence[jex_core.JaxprEqn],
  shardings: array_shardings.ArrayShardings,
  *,
  hoist: bool,
) -> list[GatheredArray]:
  """Returns the buffers of implicit collectives of the matmuls in `eqns`.

  An operand is all-gathered along a mesh axis that shards its contracted
  dimension if that axis shards another dimension of the other operand or of
  the result: FSDP weights against rows, or rows against weights. Partial sums
  are full-size until they are reduce-scattered.

  Args:
    eqns: one computation, in scheduled order.
    shardings: of its arrays.
    hoist: whether the schedule gathers inputs once, at the start of the
      computation, and delays a reduce-scatter to the first use of its result.
      Otherwise each matmul gathers and scatters for itself.
  """
  computed = {v for eqn in eqns for v in eqn.outvars}
  first_uses = _first_uses(eqns)
  sources: dict[jaxpr_walk.Var, jaxpr_walk.Var] = {}
  operands: dict[object, GatheredArray] = {}
  partial_sums = []
  for i, eqn in enumerate(eqns):
    name = eqn.primitive.name
    if name in jaxpr_walk.VIEWS and jaxpr_walk.is_variable(eqn.invars[0]):
      source = eqn.invars[0]
      sources[eqn.outvars[0]] = sources.get(source, source)
    if name != 'dot_general':
      continue
    op_name = jaxpr_walk.op_name(eqn)
    for variable, axes, num_bytes in _gathered_operands(eqn, shardings):
      source = sources.get(variable, variable)
      key = (source, axes, None if hoist else i)
      first = 0 if hoist and source not in computed else i
      array = operands.get(key) or GatheredArray(
        num_bytes, jaxpr_walk.type_text(variable), op_name, first, i
      )
      operands[key] = dataclasses.replace(array, last=i)
    num_shards = _num_scattered_shards(eqn, shardings)
    if num_shards > 1:
      (result,) = eqn.outvars
      num_bytes = shardings.bytes_per_device(result) * num_shards
      last = first_uses.get(result, len(eqns)) if hoist else i
      partial_sums.append(
        GatheredArray(num_bytes, jaxpr_walk.type_text(result), op_name, i, last)
      )
  return [*partial_sums, *operands.values()]


def _first_uses(
  eqns: Sequence[jex_core.JaxprEqn],
) -> dict[jaxpr_walk.Var, int]:
  """Maps each variable to the first non-elementwise equation that needs it.

  Elementwise equations between the two are fused into that one.
  """
  first_uses: dict[jaxpr_walk.Var, int] = {}
  for i, eqn in reversed(list(enumerate(eqns))):
    uses = [first_uses[v] for v in eqn.outvars if v in first_uses]
    if eqn.primitive.name in jaxpr_walk.NON_ELEMENTWISE:
      use = i
    elif uses:
      use = min(uses)
    else:
      continue
    for variable in jaxpr_walk.variables(eqn.invars):
      first_uses[variable] = min(use, first_uses.get(variable, use))
  return first_uses


def _gathered_operands(
  eqn: jex_core.JaxprEqn, shardings: array_shardings.ArrayShardings
) -> Iterator[tuple[jaxpr_walk.Var, tuple[str, ...], float]]:
  """Operands of a matmul to gather, the mesh axes, and their bytes gathered."""
  contracted_dims, _ = eqn.params['dimension_numbers']
  operands = eqn.invars[:2]
  dim_axes = [shardings.dim_axes(jaxpr_walk.shape(x)) for x in operands]
  result_axes = _result_axes(eqn, shardings)
  for k, other in ((0, 1), (1, 0)):
    contracted = {a for dim in contracted_dims[k] for a in dim_axes[k][dim]}
    other_contracted = {
      a for dim in contracted_dims[other] for a in dim_axes[other][dim]
    }
    other_free = set(sum(dim_axes[other], ())) - other_contracted
    conflicts = (contracted - other_contracted) & (other_free | result_axes)
    axes = tuple(sorted(conflicts))
    operand = operands[k]
    if axes and jaxpr_walk.is_variable(operand):
      num_bytes = shardings.bytes_per_device(operand)
      yield operand, axes, num_bytes * shardings.num_shards(axes)


def _num_scattered_shards(
  eqn: jex_core.JaxprEqn, shardings: array_shardings.ArrayShardings
) -> int:
  """Shards that the partial sums of a matmul are scattered to."""
  (left_dims, right_dims), _ = eqn.params['dimension_numbers']
  left, right = (
    shardings.dim_axes(jaxpr_walk.shape(x)) for x in eqn.invars[:2]
  )
  contracted = {a for dim in left_dims for a in left[dim]}
  contracted &= {a for dim in right_dims for a in right[dim]}
  return shardings.num_shards(tuple(contracted & _result_axes(eqn, shardings)))


def _result_axes(
  eqn: jex_core.JaxprEqn, shardings: array_shardings.ArrayShardings
) -> set[str]:
  (result,) = eqn.outvars
  return set(sum(shardings.dim_axes(jaxpr_walk.shape(result)), ()))
