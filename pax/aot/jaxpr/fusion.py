# SPDX-License-Identifier: Apache-2.0
"""Values of a jaxpr that XLA materializes in HBM on a TPU, after fusion.

Elementwise operations are recomputed in every consumer, as reading an array
again costs more. Materialized are

- results of matmuls, reductions and control flow. Of a matmul with a chain of
  single-use elementwise operations after it (its epilogue) it is the narrowest
  value, as bfloat16 logits before they become float32 to be capped and summed;
- the exponentials of a softmax that feed both matmuls and a sum, as XLA
  computes maximum, exponentials and sum of a row in one fusion;
- values that feed several matmuls, or a matmul and a reduction, and are
  computed from several arrays or needed by the reduction anyway;
- operands of control flow.

The rules follow compiled steps: docs/aot.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jax.extend import core as jex_core

from pax.aot.jaxpr import array_shardings, jaxpr_walk
from pax.aot.jaxpr.jaxpr_walk import Var

# Never materialized: XLA generates their values in the consumer.
_GENERATED = frozenset({'broadcast_in_dim', 'iota'})
# The softmax fusion takes up to (batch, heads, queries, keys).
_MAX_SOFTMAX_RANK = 4


@dataclasses.dataclass(frozen=True)
class Materialized:
  """The values of a computation that are in memory."""

  # Maps each to the index of the equation from which on it is allocated.
  start: Mapping[Var, int]
  # Values fused with their own reduction; they cannot reuse an operand's
  # buffer.
  fused_with_reduction: frozenset[Var]


def materialized_values(
  eqns: Sequence[jex_core.JaxprEqn],
  results: Sequence[Var],
  shardings: array_shardings.ArrayShardings,
) -> Materialized:
  """Returns the values of a computation that XLA materializes.

  Args:
    eqns: the computation, in scheduled order.
    results: its results, without literals.
    shardings: of its arrays.
  """
  dataflow = _Dataflow(eqns, results)
  start = _unfused_values(dataflow)
  start |= _matmul_values(dataflow)
  shared = _shared_values(dataflow, shardings, start)
  start |= shared.start
  return Materialized(
    start={
      variable: i
      for variable, i in start.items()
      if jaxpr_walk.is_array(variable)
      and not _updates_state(dataflow, shardings, variable, i)
    },
    fused_with_reduction=shared.fused_with_reduction,
  )


class _Dataflow:
  """Equations of a computation by index, and the consumers of each value."""

  def __init__(self, eqns: Sequence[jex_core.JaxprEqn], results: Sequence[Var]):
    self.eqns = eqns
    # Results, and operands of control flow: values that must be buffers.
    self.buffers = set(results)
    self._users: dict[Var, list[int]] = {}
    for i, eqn in enumerate(eqns):
      operands = jaxpr_walk.variables(eqn.invars)
      for variable in set(operands):
        self._users.setdefault(variable, []).append(i)
      if eqn.primitive.name in jaxpr_walk.CONTROL_FLOW:
        self.buffers.update(operands)

  def primitive(self, i: int) -> str:
    return self.eqns[i].primitive.name

  def is_elementwise(self, i: int) -> bool:
    """Whether an equation is elementwise or a view."""
    return self.primitive(i) not in jaxpr_walk.NON_ELEMENTWISE

  def users(self, variable: Var) -> Sequence[int]:
    """Returns the equations that read a value."""
    return self._users.get(variable, ())

  def sole_user(self, variable: Var) -> int | None:
    """Returns the only equation that reads a value; None if it is a buffer."""
    users = self.users(variable)
    is_single_use = len(users) == 1 and variable not in self.buffers
    return users[0] if is_single_use else None


def _updates_state(
  dataflow: _Dataflow,
  shardings: array_shardings.ArrayShardings,
  variable: Var,
  i: int,
) -> bool:
  """Whether it is the new value of a state variable, in the donated buffer."""
  is_update = dataflow.primitive(i) == 'cond' or dataflow.is_elementwise(i)
  return is_update and shardings.is_state(variable)


# Non-elementwise operations other than matmuls.


def _unfused_values(dataflow: _Dataflow) -> dict[Var, int]:
  """Results of reductions, control flow and the like, buffers, and slices."""
  start = {}
  for i, eqn in enumerate(dataflow.eqns):
    name = dataflow.primitive(i)
    is_unfused = (
      not dataflow.is_elementwise(i) and name not in jaxpr_walk.CONTRACTIONS
    ) or _is_copied_slice(dataflow, i)
    for variable in eqn.outvars:
      is_buffer = variable in dataflow.buffers and name not in _GENERATED
      if is_unfused or is_buffer:
        start[variable] = i
  return start


def _is_copied_slice(dataflow: _Dataflow, i: int) -> bool:
  """Whether it is a slice with several users of an array used nowhere else."""
  if dataflow.primitive(i) not in ('slice', 'dynamic_slice'):
    return False
  source, result = dataflow.eqns[i].invars[0], dataflow.eqns[i].outvars[0]
  if not jaxpr_walk.is_variable(source) or dataflow.sole_user(source) != i:
    return False
  return len(dataflow.users(result)) > 1


# Matmuls with their epilogues.


@dataclasses.dataclass
class _MatmulFusion:
  """A matmul and its epilogue."""

  # Index of the matmul.
  start: int
  # Results of the matmul and of each epilogue operation.
  values: list[Var]

  def narrowest(self) -> Var:
    """The last of the values with the fewest bytes."""
    return min(reversed(self.values), key=jaxpr_walk.global_bytes)


def _matmul_values(dataflow: _Dataflow) -> dict[Var, int]:
  """The value of each matmul fusion that is materialized."""
  # Fusions that continue, by their last value.
  open_fusions: dict[Var, _MatmulFusion] = {}
  start = {}
  for i, eqn in enumerate(dataflow.eqns):
    fusion = None
    if dataflow.primitive(i) in jaxpr_walk.CONTRACTIONS:
      fusion = _MatmulFusion(i, [])
    elif dataflow.is_elementwise(i) and len(eqn.outvars) == 1:
      operands = dict.fromkeys(jaxpr_walk.variables(eqn.invars))
      joined = [v for v in operands if v in open_fusions]
      joined.sort(key=lambda v: open_fusions[v].start)
      # The last matmul takes the operation; the others end before it.
      for variable in joined:
        fusion = open_fusions.pop(variable)
        if variable is not joined[-1]:
          start[fusion.narrowest()] = fusion.start
    if fusion is None:
      continue
    (variable,) = eqn.outvars
    fusion.values.append(variable)
    user = dataflow.sole_user(variable)
    if user is not None and dataflow.is_elementwise(user):
      open_fusions[variable] = fusion
    elif variable in dataflow.buffers:
      start[variable] = fusion.start
    else:
      start[fusion.narrowest()] = fusion.start
  for fusion in open_fusions.values():
    start[fusion.narrowest()] = fusion.start
  return start


# Elementwise values that several matmuls and reductions consume.


@dataclasses.dataclass
class _Consumers:
  """Non-elementwise consumers of a value that is recomputed in each."""

  # Matmuls, by index; and those that read it through views only.
  matmuls: set[int] = dataclasses.field(default_factory=set)
  direct_matmuls: set[int] = dataclasses.field(default_factory=set)
  # Whether a reduction reads it, directly or through views.
  has_reduction: bool = False


def _shared_values(
  dataflow: _Dataflow,
  shardings: array_shardings.ArrayShardings,
  materialized: Mapping[Var, int],
) -> Materialized:
  """Elementwise values that are computed once for several consumers."""
  sources = _materialized_sources(dataflow, materialized)
  start: dict[Var, int] = {}
  fused_with_reduction: set[Var] = set()
  recomputed: dict[Var, _Consumers] = {}
  # From consumers to producers: a materialized value ends the search of its
  # operands for consumers.
  for i in reversed(range(len(dataflow.eqns))):
    if not dataflow.is_elementwise(i):
      continue
    for variable in dataflow.eqns[i].outvars:
      if variable in materialized or not jaxpr_walk.is_array(variable):
        continue
      consumers = _consumers(dataflow, variable, recomputed)
      if _is_softmax(dataflow, variable, i, consumers):
        is_shared = not shardings.dim_axes(jaxpr_walk.shape(variable))[-1]
      else:
        is_shared = _is_shared(
          variable, consumers, sources[variable], shardings
        )
      if not is_shared:
        recomputed[variable] = consumers
        continue
      start[variable] = i
      if consumers.has_reduction:
        fused_with_reduction.add(variable)
  return Materialized(start, frozenset(fused_with_reduction))


def _consumers(
  dataflow: _Dataflow, variable: Var, recomputed: Mapping[Var, _Consumers]
) -> _Consumers:
  consumers = _Consumers()
  for i in dataflow.users(variable):
    name = dataflow.primitive(i)
    if name in jaxpr_walk.CONTRACTIONS:
      consumers.matmuls.add(i)
      consumers.direct_matmuls.add(i)
    elif name in jaxpr_walk.REDUCTIONS:
      consumers.has_reduction = True
    elif dataflow.is_elementwise(i):
      for result in dataflow.eqns[i].outvars:
        if (indirect := recomputed.get(result)) is None:
          continue
        consumers.matmuls |= indirect.matmuls
        if name in jaxpr_walk.VIEWS:
          consumers.direct_matmuls |= indirect.direct_matmuls
          consumers.has_reduction |= indirect.has_reduction
  return consumers


def _is_softmax(
  dataflow: _Dataflow, variable: Var, i: int, consumers: _Consumers
) -> bool:
  """Whether these are the exponentials of a softmax that matmuls read."""
  return (
    dataflow.primitive(i) == 'exp'
    and consumers.has_reduction
    and bool(consumers.matmuls)
    and 1 < len(jaxpr_walk.shape(variable)) <= _MAX_SOFTMAX_RANK
  )


def _is_shared(
  variable: Var,
  consumers: _Consumers,
  sources: frozenset[Var],
  shardings: array_shardings.ArrayShardings,
) -> bool:
  """Whether recomputing a value costs more than reading it again."""
  if consumers.has_reduction and consumers.direct_matmuls:
    return True
  if len(consumers.direct_matmuls) < 2:
    return False
  num_bytes = shardings.bytes_per_device(variable)
  large_sources = [
    source
    for source in sources
    if 2 * shardings.bytes_per_device(source) >= num_bytes
  ]
  return len(large_sources) > 1


def _materialized_sources(
  dataflow: _Dataflow, materialized: Mapping[Var, int]
) -> dict[Var, frozenset[Var]]:
  """Maps each value to the arrays in memory that it is computed from."""
  sources: dict[Var, frozenset[Var]] = {}
  for eqn in dataflow.eqns:
    operand_sources: set[Var] = set()
    for variable in jaxpr_walk.variables(eqn.invars):
      if variable in sources and variable not in materialized:
        operand_sources |= sources[variable]
      elif jaxpr_walk.is_array(variable):
        operand_sources.add(variable)
    for variable in eqn.outvars:
      sources[variable] = frozenset(operand_sources)
  return sources
