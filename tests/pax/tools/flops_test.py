# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""FLOPs by hand."""

from __future__ import annotations

import fractions
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pax.tools import flops
from praxis.layers.moe import routed_rows
from praxis.py_utils import jaxprs


def test_products_reductions_and_what_is_free():
  def fn(x, w):
    return jnp.tanh(x @ w).reshape(-1).sum()

  found = flops.count(fn, jnp.ones((3, 5)), jnp.ones((5, 7)))
  assert found == {'dot_general': 2 * 3 * 5 * 7, 'tanh': 21, 'reduce_sum': 21}


def test_loops_count_as_often_as_they_run():
  def fn(x):
    def body(x, _):
      return jax.checkpoint(lambda y: jnp.sin(y @ y))(x), None

    return jax.lax.scan(body, x, length=6)[0]

  found = flops.count(fn, jnp.ones((4, 4)))
  assert found == {'dot_general': 6 * 2 * 64, 'sin': 6 * 16}


def test_the_dearest_branch_counts():
  def fn(x, p):
    return jax.lax.cond(p, lambda x: jnp.sin(jnp.cos(x)), jnp.exp, x)

  assert flops.count(fn, jnp.ones(8), True) == {'cos': 8, 'sin': 8}


def test_convolutions():
  def fn(x, k):
    return jax.lax.conv_general_dilated(
      x, k, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )

  found = flops.count(fn, jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 16)))
  assert found['conv_general_dilated'] == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 3)


def test_gradients_of_strided_convolutions_are_as_dear_as_their_results():
  def loss(x, k):
    return jax.lax.conv_general_dilated(
      x, k, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    ).sum()

  gradients = jax.grad(loss, argnums=(0, 1))
  found = flops.count(gradients, jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5)))
  forward = 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)
  # With respect to the input, which is dilated, and to the kernel.
  assert found['conv_general_dilated'] == 2 * forward


def test_products_of_groups_of_rows_count_each_row_once():
  # As of experts: each of 64 rows is multiplied by one of 4 matrices.
  sizes = jnp.array([16, 8, 40, 0])
  rows, weights = jnp.ones((64, 32)), jnp.ones((4, 32, 16))
  product = 2 * 64 * 32 * 16
  found = flops.count(jax.lax.ragged_dot, rows, weights, sizes)
  assert found == {'ragged_dot_general': product}
  gradients = jax.grad(
    lambda x, w: jax.lax.ragged_dot(x, w, sizes).sum(), argnums=(0, 1)
  )
  found = flops.count(gradients, rows, weights)
  assert found['ragged_dot_general'] == 2 * product


def test_rows_that_are_routed_to_other_devices_do_not_count():
  sizes = jnp.array([4, 4])

  def product(rows, weights):
    with routed_rows.scope(fractions.Fraction(2, 16)):
      return jax.lax.ragged_dot(rows, weights, sizes).sum()

  args = jnp.ones((64, 32)), jnp.ones((2, 32, 16))
  want = 2 * 8 * 32 * 16
  assert flops.count(product, *args)['ragged_dot_general'] == want
  gradients = jax.grad(jax.checkpoint(product), argnums=(0, 1))
  found = flops.count(gradients, *args)['ragged_dot_general']
  assert found == 2 * want


def test_a_mapped_function_runs_once_per_part_of_its_operands():
  types = (jax.sharding.AxisType.Auto,) * 2
  mesh = jax.sharding.AbstractMesh((2, 4), ('a', 'b'), axis_types=types)
  spec = jax.sharding.PartitionSpec('a')
  args = jnp.ones((8, 16)), jnp.ones((16, 4))
  for axes, repeats in (({'a'}, 1), ({'a', 'b'}, 4)):
    mapped = jax.shard_map(
      jnp.dot,
      mesh=mesh,
      in_specs=(spec, jax.sharding.PartitionSpec()),
      out_specs=spec,
      axis_names=axes,
      check_vma=False,
    )
    found = flops.count(mapped, *args)
    # Devices along b repeat the work only if the function maps over b too.
    assert found['dot_general'] == repeats * 2 * 8 * 16 * 4


def test_branches_of_other_platforms_do_not_count():
  def fn(x):
    body = lambda x, _: (
      jax.lax.platform_dependent(
        x, tpu=lambda x: x @ x @ x, cuda=lambda x: x @ x, default=jnp.sin
      ),
      None,
    )
    return jax.lax.scan(body, x, length=3)[0]

  x = jnp.ones((4, 4))
  assert flops.count(fn, x) == {'sin': 3 * 16}
  jaxpr = jax.make_jaxpr(fn)(x).jaxpr
  for platform, products in (('tpu', 2), ('gpu', 1)):
    found = flops.count_jaxpr(jaxprs.select_platform(jaxpr, platform))
    assert found == {'dot_general': 3 * products * 2 * 64}


def test_custom_gradients_count_once():
  fn = lambda x: jax.nn.relu(x) * 2.0
  found = flops.count(fn, jnp.ones(5))
  assert found['max'] == 5 and found['mul'] == 5


def test_what_no_result_depends_on_counts_nothing():
  jaxpr = jax.make_jaxpr(lambda x: (jax.jit(jnp.sin)(jnp.cos(x)), x + 1.0))(
    jnp.ones(5)
  ).jaxpr
  # The function without its first result, as transformations of JAX leave it.
  dead = jaxpr.replace(outvars=jaxpr.outvars[1:])
  assert flops.count_jaxpr(jaxpr) == {'sin': 5, 'cos': 5, 'add': 5}
  assert flops.count_jaxpr(dead) == {'add': 5}


def test_pallas_kernels_count_every_point_of_their_grid():
  def kernel(x, w, out):
    @pl.when(pl.program_id(0) > 0)
    def _():
      out[...] = jnp.dot(x[...], w[...])

  def fn(x, w):
    return pl.pallas_call(
      kernel,
      grid=(3, 2),
      in_specs=[
        pl.BlockSpec((4, 8), lambda i, j: (i, 0)),
        pl.BlockSpec((8, 4), lambda i, j: (0, j)),
      ],
      out_specs=pl.BlockSpec((4, 4), lambda i, j: (i, j)),
      out_shape=jax.ShapeDtypeStruct((12, 8), jnp.float32),
      name='product',
    )(x, w)

  args = jnp.ones((12, 8)), jnp.ones((8, 8))
  assert flops.count(fn, *args)['dot_general'] == 2 * 12 * 8 * 8
  jaxpr = jax.make_jaxpr(lambda *xs: jax.jit(fn)(*xs))(*args).jaxpr
  assert list(flops.pallas_kernels(jaxpr)) == ['product']
  assert flops.pallas_kernels(jaxpr)['product'] >= 2 * 12 * 8 * 8


def test_pallas_kernels_with_loops_of_unknown_length_count_their_estimate():
  def kernel(n, x, out):
    out[...] = jax.lax.fori_loop(0, n[0], lambda _, y: y @ y, x[...])

  def fn(n, x, estimate):
    return pl.pallas_call(
      kernel,
      out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
      cost_estimate=estimate,
      name='power',
    )(n, x)

  args = jnp.array([3]), jnp.ones((8, 8))
  estimate = pl.CostEstimate(flops=7, transcendentals=0, bytes_accessed=0)
  estimated = functools.partial(fn, estimate=estimate)
  assert flops.count(estimated, *args) == {'dot_general': 7}
  jaxpr = jax.make_jaxpr(estimated)(*args).jaxpr
  assert flops.pallas_kernels(jaxpr) == {'power': 7}
  # Without one, an iteration.
  count = flops.count(functools.partial(fn, estimate=None), *args)
  assert count['dot_general'] == 2 * 8**3


def test_pallas_kernels_with_a_grid_of_run_time_count_their_estimate():
  def kernel(x, out):
    out[...] = jnp.dot(x[...], x[...])

  def fn(n, x, estimate):
    return pl.pallas_call(
      kernel,
      grid=(n, 2),
      in_specs=[pl.BlockSpec((8, 8), lambda i, j: (0, 0))],
      out_specs=pl.BlockSpec((8, 8), lambda i, j: (i, 0)),
      out_shape=jax.ShapeDtypeStruct((24, 8), jnp.float32),
      cost_estimate=estimate,
      name='product',
    )(x)

  args = jnp.array(3), jnp.ones((8, 8))
  estimate = pl.CostEstimate(flops=7, transcendentals=0, bytes_accessed=0)
  estimated = functools.partial(fn, estimate=estimate)
  assert flops.count(estimated, *args)['dot_general'] == 7
  jaxpr = jax.make_jaxpr(estimated)(*args).jaxpr
  assert flops.pallas_kernels(jaxpr) == {'product': 7}
  # Without one, a point along the dimension that is not known.
  count = flops.count(functools.partial(fn, estimate=None), *args)
  assert count['dot_general'] == 2 * 2 * 8**3


def test_pallas_kernels_without_a_name():
  def kernel(x, out):
    out[...] = jnp.dot(x[...], x[...])

  x = jnp.ones((8, 8))
  call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 8), x.dtype))
  assert list(flops.pallas_kernels(jax.make_jaxpr(call)(x).jaxpr)) == ['']
