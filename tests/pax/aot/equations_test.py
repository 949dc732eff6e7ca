# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What a scan takes, counted by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pax.aot import equations


@pytest.mark.parametrize('length', [1, 3])
def test_operands_of_a_scan(length):
  weights = jnp.ones((4, 4))

  def body(carry, sliced):
    x, count = carry
    return (x @ weights + sliced, count + 1), (x, x.sum())

  def run(x, rows):
    return jax.lax.scan(body, (x, 0), rows, length)

  x, rows = jnp.ones((2, 4)), jnp.ones((length, 4))
  eqns, _ = equations.flat(jax.make_jaxpr(run)(x, rows).jaxpr)
  (scan,) = (eqn for eqn in eqns if eqn.primitive.name == 'scan')
  assert equations.scan_counts(scan) == (1, 2)
  # Of four results the last two are stacked.
  assert [v.aval.shape[:1] for v in scan.outvars[2:]] == [(length,)] * 2
