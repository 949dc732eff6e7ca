# SPDX-License-Identifier: Apache-2.0
"""Traversal of jaxprs."""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend import core as jex_core

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
      jaxpr = getattr(value, 'jaxpr', value)
      if hasattr(jaxpr, 'eqns'):
        yield jaxpr
