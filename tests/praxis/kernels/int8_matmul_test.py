# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Products with a weight of int8: the kernel against jnp, and where it runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import py_utils
from praxis.kernels import int8_matmul, native
from praxis.layers.quantization import operations

pytestmark = pytest.mark.skipif(
  not native.has_kernel('cpu', int8_matmul.KERNEL)
  or native.cpu_isa() != 'avx512',
  reason='praxis.kernels._native is not built, or not for this processor',
)


def _operands(x_shape, w_shape, dtype='float32'):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=x_shape), dtype)
  return x, jnp.asarray(rng.integers(-128, 128, w_shape), jnp.int8)


def _has_kernel(fn, *args) -> bool:
  return int8_matmul.KERNEL in jax.jit(fn).lower(*args).as_text()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('rows', [1, 3, 16, 35])
def test_equals_jnp(rows, dtype):
  x, w = _operands((rows, 67), (67, 530), dtype)
  got = jax.jit(int8_matmul.int8_matmul)(x, w)
  assert got.dtype == x.dtype
  want = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
  tolerance = 1e-5 if dtype == 'float32' else 8e-3
  error = np.abs(np.asarray(got, np.float64) - want)
  assert np.max(error) <= tolerance * np.max(np.abs(want))


def test_gradient_and_vmap():
  x, w = _operands((2, 16), (16, 24))
  cotangent = jnp.cos(jnp.arange(48.0)).reshape(2, 24)

  def loss(product, x, w):
    return jnp.sum(cotangent * product(x, w))

  got, want = (
    jax.jit(
      jax.vmap(jax.value_and_grad(loss, 1), (None, 0, 0)), static_argnums=0
    )(product, jnp.stack([x, -2 * x]), jnp.stack([w, w // 2]))
    for product in (int8_matmul.int8_matmul, int8_matmul.reference)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3),
    got,
    want,
  )


@pytest.mark.parametrize(
  'eqn, x_shape, w_shape, has_kernel',
  [
    ('bd,df->bf', (2, 256), (256, 300), True),
    ('...y,yz->...z', (4, 1, 256), (256, 300), True),
    ('btd,dnh->btnh', (2, 1, 256), (256, 8, 40), True),
    ('btnh,nhd->btd', (2, 1, 8, 40), (8, 40, 256), True),
    # The weight's contracted dimensions are not the first.
    ('btnh,dnh->btd', (2, 1, 8, 40), (256, 8, 40), False),
    # Many rows, a small weight.
    ('bd,df->bf', (5, 256), (256, 300), False),
    ('bd,df->bf', (2, 16), (16, 300), False),
  ],
)
def test_einsum_of_quantized_layers(eqn, x_shape, w_shape, has_kernel):
  x, w = _operands(x_shape, w_shape)
  scale = jnp.float32(0.5)
  einsum = lambda x, w: operations.einsum(eqn, x, w, scale)
  assert _has_kernel(einsum, x, w) == has_kernel
  want = 0.5 * jnp.einsum(eqn, x, w.astype(jnp.float32))
  np.testing.assert_allclose(
    jax.jit(einsum)(x, w), want, rtol=1e-5, atol=1e-4 * np.max(np.abs(want))
  )


def test_other_platforms_and_meshes_have_no_kernel():
  x, w = _operands((2, 256), (256, 300))
  scale = jnp.float32(0.5)
  einsum = lambda x, w: operations.einsum('bd,df->bf', x, w, scale)
  with py_utils.tracing_for('tpu'):
    assert not _has_kernel(einsum, x, w)
  mesh = jax.make_mesh((2,), ('mdl',), (jax.sharding.AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert not _has_kernel(einsum, x, w)
  text = (
    jax.jit(int8_matmul.int8_matmul)
    .trace(x, w)
    .lower(lowering_platforms=('tpu',))
    .as_text()
  )
  assert int8_matmul.KERNEL not in text


def test_shapes_that_do_not_fit_are_errors():
  x, w = _operands((2, 16), (17, 24))
  call = jax.ffi.ffi_call(
    int8_matmul.KERNEL, jax.ShapeDtypeStruct((2, 24), jnp.float32)
  )
  with pytest.raises(jax.errors.JaxRuntimeError, match='must give out'):
    jax.block_until_ready(call(x, w))
