# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Derivatives of convolutions in groups; convolutions on meshes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from praxis.layers import convolutions
from praxis.layers.convolutions.convolve import convolve
from tests.praxis.layers.convolutions import numpy_conv
from tests.praxis.layers.running import jit, normal
from tests.testing import nightly


@pytest.mark.parametrize(
  ('x_shape', 'w_shape', 'strides', 'dilations', 'padding', 'pads'),
  [
    # 'SAME' of a stride of 2 pads the end only.
    ((2, 6, 4, 4), (3, 2, 1, 4), (2, 1), (1, 1), 'SAME', [(0, 1), (0, 1)]),
    ((2, 7, 5, 4), (2, 3, 2, 6), (1, 2), (2, 1), 'VALID', [(0, 0)] * 2),
    ((2, 6, 3), (3, 1, 6), (1,), (2,), [(4, 0)], [(4, 0)]),
  ],
  ids=['depthwise', 'groups', 'causal'],
)
def test_derivatives(x_shape, w_shape, strides, dilations, padding, pads):
  x, w = normal(*x_shape), normal(*w_shape, seed=1)
  conv = functools.partial(
    convolve, strides=strides, padding=padding, dilations=dilations
  )
  groups = x_shape[-1] // w_shape[-2]

  def reference(x, w):
    return numpy_conv.convolve(x, w, strides, dilations, pads, groups)

  def filter_gradient(x, cotangent):
    units = np.eye(w.size).reshape(-1, *w_shape)
    return [np.vdot(reference(x, unit), cotangent) for unit in units]

  cotangent = normal(*reference(x, w).shape, seed=2)
  x_dot, w_dot = normal(*x_shape, seed=3), normal(*w_shape, seed=4)

  @jit
  def derivatives(x, w):
    out, out_vjp = jax.vjp(conv, x, w)
    _, out_dot = jax.jvp(conv, (x, w), (x_dot, w_dot))
    of_x = lambda x: jax.vjp(conv, x, w)[1](cotangent)
    return out, out_vjp(cotangent), out_dot, jax.jvp(of_x, (x,), (x_dot,))

  out, (x_grad, w_grad), out_dot, mixed = derivatives(x, w)
  np.testing.assert_allclose(out, reference(x, w), atol=1e-5)
  want = filter_gradient(x, cotangent)
  np.testing.assert_allclose(w_grad.ravel(), want, atol=1e-5)
  # The convolution is linear in both.
  np.testing.assert_allclose(
    [np.vdot(x_grad, x), np.vdot(w_grad, w)],
    [np.vdot(cotangent, out)] * 2,
    rtol=1e-4,
  )
  want = reference(x_dot, w) + reference(x, w_dot)
  np.testing.assert_allclose(out_dot, want, atol=1e-5)
  want = filter_gradient(x_dot, cotangent)
  np.testing.assert_allclose(mixed[1][1].ravel(), want, atol=1e-5)


@pytest.mark.parametrize(
  ('shape', 'channels_per_group'),
  [((4, 2), 1), ((2, 4), 2), *nightly.cases(((4, 2), 2), ((2, 4), 1))],
)
def test_gradients_on_a_mesh_are_those_of_one_device(shape, channels_per_group):
  # XLA multiplies the filter's gradient that JAX derives by the size of `mdl`.
  mesh = jax.make_mesh(
    shape, ('data', 'mdl'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  x, w = normal(8, 6, 8), normal(3, channels_per_group, 8, seed=1)
  cotangent = normal(8, 6, 8, seed=2)

  def loss(x, w):
    out = convolve(x, w, strides=(1,), padding='SAME', dilations=(1,))
    return jnp.vdot(out, cotangent)

  gradients = jit(jax.grad(loss, argnums=(0, 1)))
  want = gradients(x, w)
  rows, replicated = PartitionSpec('data'), PartitionSpec()
  got = gradients(
    jax.device_put(x, NamedSharding(mesh, rows)),
    jax.device_put(w, NamedSharding(mesh, replicated)),
  )
  for g, reference in zip(got, want, strict=True):
    np.testing.assert_allclose(g, reference, atol=1e-5)


_REPLICATED = (None, None, None, None)


@pytest.mark.parametrize(
  ('x_axes', 'w_axes'),
  [
    # Sharded images, each shard on two devices.
    (('data', 'mdl'), _REPLICATED),
    (('replica', 'data'), (None, None, None, 'mdl')),
    # Sharded filters.
    ((None, None, None, 'mdl'), ('data',)),
    # Images sharded over all devices.
    ((('replica', 'data'), 'mdl'), (None, None, 'data', 'mdl')),
  ],
)
def test_sharded_spatial_dimensions(x_axes, w_axes):
  config = convolutions.Conv2D.config(
    name='conv',
    filter_shape=(4, 4, 4, 8),
    filter_stride=(1, 1),
    ici_mesh_shape=[2, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  out = (*x_axes, *_REPLICATED)[:4]
  config.activation_split_dims_mapping.out = out
  mesh = jax.make_mesh(
    config.ici_mesh_shape,
    config.mesh_axis_names,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )
  x, w = normal(8, 8, 8, 4), normal(4, 4, 4, 8, seed=1)
  cotangent = normal(8, 8, 8, 8, seed=2)
  layer = config.Instantiate()

  def out_and_gradients(x, w):
    apply = lambda x, w: layer.apply({'params': {'w': w}}, x)
    out, vjp = jax.vjp(apply, x, w)
    return out, *vjp(cotangent)

  want = jit(out_and_gradients)(x, w)
  w = jax.device_put(w, NamedSharding(mesh, PartitionSpec(*w_axes)))
  with jax.set_mesh(mesh):
    got = jax.jit(out_and_gradients)(x, w)
  for value, reference in zip(got, want, strict=True):
    np.testing.assert_allclose(value, reference, atol=1e-3)
