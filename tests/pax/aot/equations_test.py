# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Equations in their order, and in the other one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax.aot import equations


def names(eqns):
  return [eqn.primitive.name for eqn in eqns]


def flat(fn, *args):
  return equations.flat(jax.make_jaxpr(fn)(*args).jaxpr)


def test_a_function_called_twice_gives_other_variables_each_time():
  inner = jax.jit(lambda x: jnp.sin(x) + 1)
  eqns, results = flat(lambda x: inner(inner(x)), 1.0)
  assert names(eqns) == ['sin', 'add', 'sin', 'add']
  made = [v for eqn in eqns for v in eqn.outvars]
  assert len(set(made)) == 4 and results == [made[-1]]
  assert eqns[2].invars == [made[1]]


def test_what_nobody_wants_is_left_out():
  def fn(x):
    jnp.exp(x)
    return jnp.cos(x)

  assert names(flat(fn, 1.0)[0]) == ['cos']


def test_late_is_just_before_it_is_wanted():
  def fn(x):
    a, b = jnp.sin(x), jnp.cos(x)
    c = jnp.tanh(a)
    return jnp.exp(c), b

  eqns, results = flat(fn, 1.0)
  assert names(eqns) == ['sin', 'cos', 'tanh', 'exp']
  late = equations.late(eqns, results)
  assert names(late) == ['sin', 'tanh', 'exp', 'cos']
