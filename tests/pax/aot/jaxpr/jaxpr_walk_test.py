# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Inlined equations, their late schedule, and operands of scans, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pax.aot.jaxpr import jaxpr_walk
from praxis.py_utils import jaxprs


def names(eqns):
  return [eqn.primitive.name for eqn in eqns]


def inline(fn, *args):
  return jaxpr_walk.inline_calls(jax.make_jaxpr(fn)(*args).jaxpr)


def test_a_function_called_twice_gives_other_variables_each_time():
  inner = jax.jit(lambda x: jnp.sin(x) + 1)
  eqns, results = inline(lambda x: inner(inner(x)), 1.0)
  assert names(eqns) == ['sin', 'add', 'sin', 'add']
  outvars = [v for eqn in eqns for v in eqn.outvars]
  assert len(set(outvars)) == 4 and results == [outvars[-1]]
  assert eqns[2].invars == [outvars[1]]


def test_a_barrier_is_what_it_holds_up():
  def fn(x, y):
    x, y = jax.lax.optimization_barrier((jnp.sin(x), jnp.cos(y)))
    return x * y

  eqns, _ = inline(fn, 1.0, 2.0)
  assert names(eqns) == ['sin', 'cos', 'mul']
  assert eqns[2].invars == [eqns[0].outvars[0], eqns[1].outvars[0]]


def test_what_nobody_wants_is_left_out():
  def fn(x):
    jnp.exp(x)
    return jnp.cos(x)

  assert names(inline(fn, 1.0)[0]) == ['cos']


def test_late_is_just_before_it_is_wanted():
  def fn(x):
    a, b = jnp.sin(x), jnp.cos(x)
    c = jnp.tanh(a)
    return jnp.exp(c), b

  eqns, results = inline(fn, 1.0)
  assert names(eqns) == ['sin', 'cos', 'tanh', 'exp']
  late = jaxpr_walk.schedule_alap(eqns, results)
  assert names(late) == ['sin', 'tanh', 'exp', 'cos']


@pytest.mark.parametrize('length', [1, 3])
def test_operands_of_a_scan(length):
  weights = jnp.ones((4, 4))

  def body(carry, sliced):
    x, count = carry
    return (x @ weights + sliced, count + 1), (x, x.sum())

  def run(x, rows):
    return jax.lax.scan(body, (x, 0), rows, length)

  x, rows = jnp.ones((2, 4)), jnp.ones((length, 4))
  eqns, _ = jaxpr_walk.inline_calls(jax.make_jaxpr(run)(x, rows).jaxpr)
  (scan,) = (eqn for eqn in eqns if eqn.primitive.name == 'scan')
  assert jaxprs.scan_num_consts_and_carry(scan) == (1, 2)
  # The last two of four results are stacked.
  assert [v.aval.shape[:1] for v in scan.outvars[2:]] == [(length,)] * 2


def test_a_platform_saves_nothing_for_the_gradients_of_others():
  def body(x, _):
    x = jax.lax.platform_dependent(
      x, cpu=lambda x: jnp.sin(jnp.exp(x)), default=lambda x: 2.0 * x
    )
    return x, None

  def loss(x):
    return jnp.sum(jax.lax.scan(body, x, length=3)[0])

  jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones(5)).jaxpr
  assert 'f32[3,5]' in str(jaxpr)
  on_tpu = jaxprs.select_platform(jaxpr, 'tpu')
  assert 'f32[3,5]' not in str(on_tpu) and 'sin' not in str(on_tpu)
  assert len(on_tpu.invars) == 1
  on_cpu = str(jaxprs.select_platform(jaxpr, 'cpu'))
  assert 'f32[3,5]' in on_cpu and 'cos' in on_cpu
