# SPDX-License-Identifier: Apache-2.0
"""Inlined equations of a jaxpr, their schedules, and sets of primitives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard, cast

import jax
from jax.extend import core as jex_core

from praxis import py_utils
from praxis.py_utils import jaxprs

CONTRACTIONS = frozenset({
  'conv_general_dilated', 'dot_general', 'ragged_dot_general',
})  # fmt: skip
REDUCTIONS = frozenset({
  'argmax', 'argmin', 'reduce_and', 'reduce_max', 'reduce_min', 'reduce_or',
  'reduce_prod', 'reduce_sum',
})  # fmt: skip
# Their operands and results are buffers.
CONTROL_FLOW = frozenset({'scan', 'while', 'cond', 'shard_map'})
# Neither elementwise nor a view of their operand.
NON_ELEMENTWISE = CONTRACTIONS | REDUCTIONS | CONTROL_FLOW | frozenset({
  'concatenate', 'cumsum', 'dynamic_update_slice', 'gather', 'random_bits',
  'scatter', 'scatter-add', 'sort', 'threefry2x32', 'top_k',
})  # fmt: skip
# The values of their operand in another shape, layout or dtype.
VIEWS = frozenset({
  'convert_element_type', 'copy', 'name', 'reshape', 'sharding_constraint',
  'squeeze', 'stop_gradient', 'transpose',
})  # fmt: skip


# An operand or result.
Var = jex_core.Var
Atom = Var | jex_core.Literal


def inline_calls(
  jaxpr: jex_core.Jaxpr,
) -> tuple[list[jex_core.JaxprEqn], list[Atom]]:
  """Returns the live equations of a jaxpr with calls inlined, and its results.

  Control flow is not inlined. `optimization_barrier` is dropped: it constrains
  the schedule and changes no values. Inputs keep their variables; results are
  new ones, as each call of a function has its own.
  """
  names: dict[Var, Atom] = {v: v for v in jaxpr.invars}
  eqns = list(_inline(jaxpr, names))
  results = _rename(jaxpr.outvars, names)
  return jaxprs.live_equations(eqns, results), results


def _inline(
  jaxpr: jex_core.Jaxpr, names: dict[Var, Atom]
) -> Iterator[jex_core.JaxprEqn]:
  """Yields inlined equations; adds the replacement of each var to `names`."""
  for eqn in jaxpr.eqns:
    invars = _rename(eqn.invars, names)
    called = list(py_utils.sub_jaxprs(eqn))
    if eqn.primitive.name == 'optimization_barrier':
      names.update(zip(eqn.outvars, invars, strict=True))
    elif eqn.primitive.name in jaxprs.CALLS and len(called) == 1:
      (function,) = called
      num_consts = len(invars) - len(function.invars)
      inner = dict(zip(function.invars, invars[num_consts:], strict=True))
      yield from _inline(function, inner)
      results = _rename(function.outvars, inner)
      names.update(zip(eqn.outvars, results, strict=True))
    else:
      outvars = [Var(v.aval) for v in eqn.outvars]
      names.update(zip(eqn.outvars, outvars, strict=True))
      yield eqn.replace(invars=invars, outvars=outvars)


def _rename(atoms: Sequence[Atom], names: Mapping[Var, Atom]) -> list[Atom]:
  return [names.get(a, a) if is_variable(a) else a for a in atoms]


def schedule_alap(
  eqns: Sequence[jex_core.JaxprEqn], results: Sequence[Atom]
) -> list[jex_core.JaxprEqn]:
  """Reorders equations: each as late as possible, just before its first use.

  Results are computed in their order. A loop body's first results are its
  carry, so other results such as weight gradients come after that chain.
  """
  maker = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
  scheduled: set[int] = set()
  schedule = []
  effects = [i for i, eqn in enumerate(eqns) if not eqn.outvars]
  targets = [maker[v] for v in variables(results) if v in maker]
  for target in [*targets, *effects]:
    # Depth-first post-order over the operands.
    stack = [(target, False)]
    while stack:
      i, has_operands = stack.pop()
      if i in scheduled:
        continue
      if has_operands:
        scheduled.add(i)
        schedule.append(eqns[i])
        continue
      stack.append((i, True))
      operands = [maker[v] for v in variables(eqns[i].invars) if v in maker]
      stack += [(k, False) for k in reversed(operands) if k not in scheduled]
  return schedule


def variables(atoms: Sequence[Atom]) -> list[Var]:
  """Returns the operands or results that are not literals."""
  return [atom for atom in atoms if is_variable(atom)]


def is_variable(atom: Atom) -> TypeGuard[Var]:
  """Whether an operand or result is not a literal."""
  return not hasattr(atom, 'val')


def is_array(variable: Var) -> bool:
  """Whether a value is a numeric array, unlike random keys and tokens."""
  aval = variable.aval
  return hasattr(aval, 'shape') and hasattr(
    getattr(aval, 'dtype', None), 'kind'
  )


def array_type(array: Atom) -> jax.core.ShapedArray:
  """Returns shape and dtype of an array."""
  return cast(jax.core.ShapedArray, array.aval)


def shape(array: Atom) -> tuple[int, ...]:
  """Returns the shape of an array."""
  return tuple(array_type(array).shape)


def global_bytes(variable: Var) -> int:
  """Returns the bytes of an unsharded array."""
  return math.prod(shape(variable)) * array_type(variable).dtype.itemsize


def type_text(variable: Var) -> str:
  """Returns dtype and shape, as float32[16, 32]."""
  return f'{array_type(variable).dtype}{list(shape(variable))}'


def op_name(eqn: jex_core.JaxprEqn) -> str:
  """Returns the name stack and the primitive, as HLO metadata has them."""
  stack = str(eqn.source_info.name_stack)
  return f'{stack}/{eqn.primitive.name}' if stack else eqn.primitive.name
