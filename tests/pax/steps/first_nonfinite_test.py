# SPDX-License-Identifier: Apache-2.0
"""Locations of NaN and inf that are known by construction."""

# bazel: size=medium
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pax.learners import clipping
from pax.steps import first_nonfinite, value_magnitudes


def locate(fn, *args, names=None):
  """Returns the origin that the compiled, instrumented function reports."""
  closed = jax.make_jaxpr(fn)(*args)
  leaves = jax.tree.leaves(args)
  outputs, record = jax.jit(
    lambda *leaves: value_magnitudes.evaluate(closed, leaves)
  )(*leaves)
  for output, expected in zip(outputs, jax.tree.leaves(fn(*args)), strict=True):
    np.testing.assert_allclose(output, expected, rtol=1e-6)
  values = [
    first_nonfinite.argument(
      names[i] if names else f'x{i}',
      leaf,
      float(value_magnitudes.magnitude(leaf)),
      i - len(leaves),
    )
    if value_magnitudes.is_float(leaf)
    else first_nonfinite.Value()
    for i, leaf in enumerate(map(jnp.asarray, leaves))
  ]
  return first_nonfinite.find(closed, jax.device_get(record), values)


def test_finite_values_have_no_origin():
  assert locate(lambda x: jnp.log(x).sum(), jnp.ones(3)) is None


def test_equation_scope_and_operands():
  def fn(x):
    # As praxis names the methods of a layer.
    with jax.named_scope('net/net.run/layer_2'):
      x = jnp.log(x)
    return x.sum()

  origin = locate(fn, jnp.array([1.0, -2.0]))
  assert (origin.kind, origin.operation) == ('NaN', 'log')
  assert origin.scope == 'net/layer_2'
  assert not origin.is_backward
  assert origin.value_type == 'float32[2]'
  assert origin.operands == ('float32[2] of magnitude 2',)
  assert 'first_nonfinite_test.py' in origin.source
  assert 'NaN in net/layer_2 (forward pass): log -> float32[2]' in str(origin)


def test_the_backward_pass():
  def loss(x):
    with jax.named_scope('net/scale'):
      return (x * 1e-30 * 1e30 * 1e30).sum()

  origin = locate(jax.grad(loss), jnp.array([1e-5, 2e-5]))
  assert (origin.kind, origin.scope) == ('inf', 'net/scale')
  assert origin.operation == 'mul'
  assert origin.is_backward


def test_a_nan_that_a_mask_discards_is_no_origin():
  def fn(x, y):
    masked = jnp.where(x > 0, jnp.log(x), 0.0)
    with jax.named_scope('late'):
      return masked.sum() + jnp.log(y)

  assert locate(fn, jnp.array([-1.0, 1.0]), 1.0) is None
  assert locate(fn, jnp.array([-1.0, 1.0]), -1.0).scope == 'late'


def test_a_nan_names_the_inf_that_it_comes_from():
  def fn(x):
    with jax.named_scope('overflow'):
      y = jnp.exp(x)
    with jax.named_scope('difference'):
      return y - y

  origin = locate(fn, jnp.float32(100.0))
  assert (origin.kind, origin.scope, origin.operation) == (
    'NaN', 'difference', 'sub',
  )  # fmt: skip
  assert (origin.cause.kind, origin.cause.scope) == ('inf', 'overflow')


def test_a_masking_constant_is_not_a_cause():
  """A row of attention whose keys are all masked by -inf."""

  def fn(logits, mask):
    with jax.named_scope('attention'):
      logits = jnp.where(mask, logits, -jnp.inf)
      shifted = logits - logits.max(axis=-1, keepdims=True)
      return jnp.exp(shifted)

  mask = jnp.array([[True, False], [False, False]])
  origin = locate(fn, jnp.ones([2, 2]), mask)
  assert (origin.kind, origin.operation, origin.cause) == ('NaN', 'sub', None)
  assert locate(fn, jnp.ones([2, 2]), mask.at[1, 0].set(True)) is None


@pytest.mark.parametrize('remat', [False, True])
def test_the_iteration_of_a_scan(remat):
  def layer(x, w):
    with jax.named_scope('x_layers'):
      return jnp.log(x * w), x

  if remat:
    layer = jax.checkpoint(layer, prevent_cse=False)

  def loss(weights, x):
    x, _ = jax.lax.scan(layer, x, weights)
    return x.sum()

  # 10 -> 2.3 -> 0.83 -> log of a negative number.
  weights = jnp.array([1.0, 1.0, -1.0, 1.0])
  origin = locate(jax.value_and_grad(loss), weights, jnp.float32(10.0))
  assert (origin.kind, origin.operation) == ('NaN', 'log')
  assert origin.iterations == ('3 of 4',)
  assert not origin.is_backward
  assert origin.scope == 'x_layers'


def test_the_iteration_of_a_scan_in_the_backward_pass():
  def layer(x, w):
    with jax.named_scope('x_layers'):
      return jnp.sqrt(x * w), None

  def loss(weights):
    return jax.lax.scan(layer, jnp.float32(1.0), weights)[0]

  origin = locate(jax.grad(loss), jnp.array([1.0, 1.0, 0.0]))
  assert origin.is_backward
  assert origin.iterations == ('3 of 3',)


def test_nested_scans():
  def inner(x, w):
    return x / w, None

  def outer(x, row):
    with jax.named_scope('outer'):
      return jax.lax.scan(inner, x, row)[0], None

  rows = jnp.ones([3, 2]).at[1, 1].set(0.0)
  origin = locate(
    lambda x: jax.lax.scan(outer, x, rows)[0], jnp.zeros(()), names=['x']
  )
  assert origin.iterations == ('2 of 3', '2 of 2')
  assert (origin.kind, origin.operation) == ('NaN', 'div')


@pytest.mark.parametrize('index', [0, 1, 2])
def test_the_branch_that_ran(index):
  branches = [
    jax.named_scope('first')(lambda x: jnp.log(x)),
    jax.named_scope('second')(lambda x: jnp.sqrt(x)),
    jax.named_scope('third')(lambda x: jnp.abs(x)),
  ]

  def fn(x):
    i = jnp.where(x.sum() < 0, index, 2)
    return jax.lax.switch(i, branches, x)

  origin = locate(fn, jnp.array([-1.0, -2.0]))
  if index == 2:
    assert origin is None
  else:
    assert (origin.kind, origin.scope, origin.operation) == (
      'NaN', *[('first', 'log'), ('second', 'sqrt')][index],
    )  # fmt: skip


def test_a_while_loop():
  def body(state):
    i, x = state
    with jax.named_scope('decay'):
      return i + 1, jnp.log(x)

  def fn(x, n):
    return jax.lax.while_loop(lambda s: s[0] < n, body, (0, x))[1]

  origin = locate(fn, jnp.float32(10.0), 6)
  assert (origin.kind, origin.scope, origin.operation) == (
    'NaN',
    'decay',
    'log',
  )
  assert locate(fn, jnp.float32(10.0), 2) is None
  assert locate(fn, jnp.float32(jnp.nan), 0).scope == 'argument x0'


def test_custom_gradients_and_jit():
  @jax.custom_vjp
  def identity(x):
    return x

  def backward(_, g):
    with jax.named_scope('bad_gradient'):
      return (g / 0.0,)

  identity.defvjp(lambda x: (x, None), backward)

  @jax.jit
  def loss(x):
    return jax.nn.relu(identity(x)).sum()

  origin = locate(jax.grad(loss), jnp.ones(2))
  assert (origin.kind, origin.operation) == ('inf', 'div')
  assert 'bad_gradient' in origin.scope
  assert origin.is_backward
  # Without differentiation the equations are calls.
  assert locate(loss, jnp.array([1.0, jnp.nan])).scope == 'argument x0'


def test_arguments_are_named():
  origin = locate(
    lambda w, x: (w * x).sum(),
    jnp.ones(2),
    jnp.array([1.0, jnp.nan]),
    names=['variable w', 'batch x'],
  )
  assert origin.scope == 'argument batch x'
  assert origin.value_type == 'float32[2]'


def test_the_check_of_a_step_is_followed_where_the_result_is_masked():
  def fn(x):
    with jax.named_scope('gradient'):
      grad = 1.0 / x
    with jax.named_scope(clipping.CHECK_SCOPE):
      is_valid = jnp.isfinite(grad)
    return jnp.where(is_valid, grad, 0.0)

  origin = locate(fn, jnp.float32(0.0))
  assert (origin.kind, origin.scope) == ('inf', 'gradient')


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float8_e4m3fn'])
def test_narrow_types(dtype):
  def fn(x):
    with jax.named_scope('cast'):
      y = x.astype(dtype)
    return y.astype(jnp.float32)

  origin = locate(fn, jnp.float32(3.4e38))
  assert origin.scope == 'cast'
  assert dtype in origin.value_type


def test_a_value_on_one_device_of_a_shard_map():
  mesh = jax.make_mesh((4,), ('rows',), axis_types=(AxisType.Auto,))
  rows = PartitionSpec('rows')

  @functools.partial(
    jax.shard_map, mesh=mesh, in_specs=rows, out_specs=PartitionSpec()
  )
  def mean(x):
    with jax.named_scope('local'):
      x = jnp.log(x)
    return jax.lax.pmean(x.sum(), 'rows')

  with jax.set_mesh(mesh):
    origin = locate(mean, jnp.ones(8).at[5].set(-1.0))
  assert (origin.kind, origin.scope, origin.operation) == (
    'NaN', 'local', 'log',
  )  # fmt: skip
