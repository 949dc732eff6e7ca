# SPDX-License-Identifier: Apache-2.0
"""Traversal of jaxprs, and the structure of their equations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core as jex_core
from jax.interpreters import partial_eval

# Primitives that run one function on their last operands.
CALLS = frozenset({
  'checkpoint', 'closed_call', 'core_call', 'custom_jvp_call',
  'custom_vjp_call', 'jit', 'pjit', 'remat2',
})  # fmt: skip
# Parameters with functions that do not run with the equation.
_UNUSED_FUNCTIONS = frozenset({
  'bwd', 'cond_jaxpr', 'fwd_jaxpr_thunk', 'jvp_jaxpr_fun',
})  # fmt: skip


def sub_jaxprs(eqn: jex_core.JaxprEqn) -> Iterator[jex_core.Jaxpr]:
  """Yields the jaxprs that an equation runs.

  Of a function with a custom gradient this is the forward function.
  """
  for name, param in eqn.params.items():
    if name in _UNUSED_FUNCTIONS:
      continue
    for value in param if isinstance(param, list | tuple) else [param]:
      jaxpr: Any = getattr(value, 'jaxpr', value)
      if hasattr(jaxpr, 'eqns'):
        yield jaxpr


def select_platform(jaxpr: jex_core.Jaxpr, platform: str) -> jex_core.Jaxpr:
  """Returns a jaxpr that has only what a platform computes.

  JAX keeps all branches of `jax.lax.platform_dependent` until it lowers a
  program, and what the others save for the backward pass.

  Args:
    jaxpr: the program.
    platform: 'cpu', 'tpu' or 'gpu', which is CUDA.
  """
  platform = 'cuda' if platform == 'gpu' else platform
  # Jaxprs that several equations run remain one.
  selected: dict[jex_core.Jaxpr, jex_core.Jaxpr] = {}

  def of_jaxpr(jaxpr: jex_core.Jaxpr) -> jex_core.Jaxpr:
    if jaxpr not in selected:
      selected[jaxpr] = jaxpr.replace(eqns=[of_eqn(e) for e in jaxpr.eqns])
    return selected[jaxpr]

  def of_eqn(eqn: jex_core.JaxprEqn) -> jex_core.JaxprEqn:
    params = {name: of_param(value) for name, value in eqn.params.items()}
    for branch, names in zip(
      params.get('branches', ()),
      params.get('branches_platforms') or (),
      strict=False,
    ):
      # The default, without names, is the last.
      if names is None or platform in names:
        params['branches'] = (branch,)
        break
    return eqn.replace(params=params)

  def of_param(value: Any) -> Any:
    if isinstance(value, jex_core.ClosedJaxpr):
      return value.replace(jaxpr=of_jaxpr(value.jaxpr))
    if isinstance(value, jex_core.Jaxpr):
      return of_jaxpr(value)
    if type(value) in (list, tuple):
      return type(value)(map(of_param, value))
    return value

  is_used = [True] * len(jaxpr.outvars)
  live, _ = partial_eval.dce_jaxpr(of_jaxpr(jaxpr), is_used, instantiate=True)
  return live


def live_equations(
  eqns: Sequence[jex_core.JaxprEqn], results: Sequence[Any]
) -> list[jex_core.JaxprEqn]:
  """Returns the equations that results depend on, and those with effects.

  JAX leaves some dead ones to the compiler: in the backward pass a
  rematerialized kernel, though a policy saves its results.

  Args:
    eqns: in the order of their evaluation.
    results: variables and literals.
  """
  live_vars, live_eqns = set(_variables(results)), []
  for eqn in reversed(eqns):
    if eqn.effects or not live_vars.isdisjoint(eqn.outvars):
      live_vars.update(_variables(eqn.invars))
      live_eqns.append(eqn)
  return live_eqns[::-1]


def manual_axes(eqn: jex_core.JaxprEqn) -> tuple[str, ...]:
  """Returns the mesh axes that a shard_map splits its operands over.

  Over the other axes the partitioner splits the function itself.
  """
  # Renamed between versions of JAX.
  names = eqn.params.get('newly_manual_axes') or eqn.params.get('manual_axes')
  return tuple(names or eqn.params['mesh'].axis_names)


def scan_num_consts_and_carry(eqn: jex_core.JaxprEqn) -> tuple[int, int]:
  """Returns the number of constant and of carried operands of a scan.

  Derived from ranks, as not every supported JAX has parameters with the counts:
  scanned operands and stacked results have one dimension more than in the body.
  """
  (body,) = sub_jaxprs(eqn)
  num_scanned = _num_higher_rank(eqn.invars, body.invars)
  num_carry = len(eqn.outvars) - _num_higher_rank(eqn.outvars, body.outvars)
  return len(eqn.invars) - num_scanned - num_carry, num_carry


def _variables(atoms: Sequence[Any]) -> list[Any]:
  return [atom for atom in atoms if not hasattr(atom, 'val')]


def _num_higher_rank(outer: Sequence[Any], inner: Sequence[Any]) -> int:
  return sum(_rank(x) > _rank(y) for x, y in zip(outer, inner, strict=True))


def _rank(atom: Any) -> int:
  return len(getattr(atom.aval, 'shape', ()))
