# SPDX-License-Identifier: Apache-2.0
"""The equations of a jaxpr, with those of called functions in their place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

PRODUCTS = frozenset({
  'conv_general_dilated', 'dot_general', 'ragged_dot_general',
})  # fmt: skip
REDUCTIONS = frozenset({
  'argmax', 'argmin', 'reduce_and', 'reduce_max', 'reduce_min', 'reduce_or',
  'reduce_prod', 'reduce_sum',
})  # fmt: skip
# Take and give arrays as they are in memory.
LOOPS_AND_BRANCHES = frozenset({'scan', 'while', 'cond', 'shard_map'})
# What is neither elementwise nor a mere other view of its operand.
WHOLE = PRODUCTS | REDUCTIONS | LOOPS_AND_BRANCHES | frozenset({
  'concatenate', 'cumsum', 'dynamic_update_slice', 'gather', 'random_bits',
  'scatter', 'scatter-add', 'sort', 'threefry2x32', 'top_k',
})  # fmt: skip
# Give the numbers of their operand, in another shape, order or type.
VIEWS = frozenset({
  'convert_element_type', 'copy', 'name', 'reshape', 'sharding_constraint',
  'squeeze', 'stop_gradient', 'transpose',
})  # fmt: skip
_CALLS = frozenset({
  'checkpoint', 'closed_call', 'core_call', 'custom_jvp_call',
  'custom_vjp_call', 'jit', 'pjit', 'remat2',
})  # fmt: skip
_NEVER_RUN = frozenset({
  'bwd', 'cond_jaxpr', 'fwd_jaxpr_thunk', 'jvp_jaxpr_fun',
})  # fmt: skip


def flat(jaxpr: Any) -> tuple[list[Any], list[Any]]:
  """Returns the equations that are needed, and the results, in their order.

  A result is the variable that it is, or a literal.
  """
  names: dict[Any, Any] = {v: v for v in jaxpr.invars}
  eqns = list(_flat(jaxpr, names))
  results = [names.get(v, v) if is_variable(v) else v for v in jaxpr.outvars]
  return _needed(eqns, results), results


@dataclasses.dataclass(frozen=True, eq=False)
class Variable:
  """What an equation gives; another one each time its function is called."""

  aval: Any


def _needed(eqns: Sequence[Any], results: Sequence[Any]) -> list[Any]:
  wanted, found = set(variables(results)), []
  for eqn in reversed(eqns):
    if not eqn.outvars or not wanted.isdisjoint(eqn.outvars):
      wanted.update(variables(eqn.invars))
      found.append(eqn)
  return found[::-1]


def late(eqns: Sequence[Any], results: Sequence[Any]) -> list[Any]:
  """Returns them in another order: each just before it is first wanted.

  Beginning with the first result, that of the chain through a loop; what it
  does not need, as gradients of weights, comes after it.
  """
  maker = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
  done: set[int] = set()
  order = []
  effects = [i for i, eqn in enumerate(eqns) if not eqn.outvars]
  wanted = [maker[v] for v in variables(results) if v in maker]
  for first in [*wanted, *effects]:
    stack = [(first, False)]
    while stack:
      i, ready = stack.pop()
      if i in done:
        continue
      if ready:
        done.add(i)
        order.append(eqns[i])
        continue
      stack.append((i, True))
      needs = [maker[v] for v in variables(eqns[i].invars) if v in maker]
      stack += [(k, False) for k in reversed(needs) if k not in done]
  return order


def _flat(jaxpr: Any, names: dict[Any, Any]) -> Iterator[Any]:
  """The same; `names` is filled with who stands for each variable."""
  for eqn in jaxpr.eqns:
    invars = [names.get(v, v) if is_variable(v) else v for v in eqn.invars]
    called = list(inner(eqn))
    if eqn.primitive.name == 'optimization_barrier':
      # Only says when, not what.
      names.update(zip(eqn.outvars, invars, strict=True))
    elif eqn.primitive.name in _CALLS and len(called) == 1:
      (function,) = called
      skipped = len(invars) - len(function.invars)
      within = dict(zip(function.invars, invars[skipped:], strict=True))
      yield from _flat(function, within)
      for outer, own in zip(eqn.outvars, function.outvars, strict=True):
        names[outer] = within.get(own, own) if is_variable(own) else own
    else:
      outvars = [Variable(v.aval) for v in eqn.outvars]
      names.update(zip(eqn.outvars, outvars, strict=True))
      yield eqn.replace(invars=invars, outvars=outvars)


def inner(eqn: Any) -> Iterator[Any]:
  """The jaxprs that an equation runs."""
  for name, value in eqn.params.items():
    if name in _NEVER_RUN:
      continue
    for part in value if isinstance(value, list | tuple) else [value]:
      found = getattr(part, 'jaxpr', part)
      if hasattr(found, 'eqns'):
        yield found


def scan_counts(eqn: Any) -> tuple[int, int]:
  """Returns how many operands of a scan are constants, and how many carried.

  Shapes tell: what is sliced or stacked has one more dimension outside of the
  loop. Not every JAX has parameters that count them.
  """
  (body,) = inner(eqn)
  sliced = _num_larger(eqn.invars, body.invars)
  carried = len(eqn.outvars) - _num_larger(eqn.outvars, body.outvars)
  return len(eqn.invars) - sliced - carried, carried


def _num_larger(outside: Sequence[Any], within: Sequence[Any]) -> int:
  return sum(
    _rank(one) > _rank(own) for one, own in zip(outside, within, strict=True)
  )


def _rank(variable: Any) -> int:
  return len(getattr(variable.aval, 'shape', ()))


def variables(found: Sequence[Any]) -> list[Any]:
  """Those of operands or results that are no literals."""
  return [v for v in found if is_variable(v)]


def is_variable(found: Any) -> bool:
  return not hasattr(found, 'val')


def is_array(variable: Any) -> bool:
  """Whether it has numbers, unlike random keys and tokens."""
  aval = variable.aval
  return hasattr(aval, 'shape') and hasattr(
    getattr(aval, 'dtype', None), 'kind'
  )


def whole_bytes(variable: Any) -> int:
  """Bytes on all devices together."""
  return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize


def origin(eqn: Any) -> str:
  """Where in the model an equation is from."""
  stack = str(eqn.source_info.name_stack)
  return f'{stack}/{eqn.primitive.name}' if stack else eqn.primitive.name
