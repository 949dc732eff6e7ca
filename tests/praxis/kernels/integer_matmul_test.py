# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Products with a weight of integers: the kernel against jnp, where it runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, py_utils
from praxis.kernels import integer_matmul, native
from praxis.layers import quantization
from praxis.layers.quantization import operations, quantization_hparams
from praxis.layers.quantization.utils import int4_packing

pytestmark = pytest.mark.skipif(
  not native.has_kernel('cpu', integer_matmul.KERNEL)
  or native.cpu_isa() not in ('avx2', 'avx512'),
  reason='praxis.kernels._native is not built, or not for this processor',
)


def _operands(x_shape, w_shape, dtype='float32'):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=x_shape), dtype)
  return x, jnp.asarray(rng.integers(-128, 128, w_shape), jnp.int8)


def _packed(x_shape, w_shape, container, dtype='float32', dim=0):
  """Returns activations, a weight of int4, and the same weight packed."""
  x, w = _operands(x_shape, w_shape, dtype)
  w = w // 16
  return x, w, int4_packing.pack_4bit(w, dim, container)


def _has_kernel(fn, *args) -> bool:
  return integer_matmul.KERNEL in jax.jit(fn).lower(*args).as_text()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('rows', [1, 3, 16, 35])
def test_equals_jnp(rows, dtype):
  x, w = _operands((rows, 67), (67, 530), dtype)
  got = jax.jit(integer_matmul.integer_matmul)(x, w)
  assert got.dtype == x.dtype
  want = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
  tolerance = 1e-5 if dtype == 'float32' else 8e-3
  error = np.abs(np.asarray(got, np.float64) - want)
  assert np.max(error) <= tolerance * np.max(np.abs(want))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('container', [jnp.int8, jnp.int32])
@pytest.mark.parametrize('rows', [1, 3, 35])
def test_int4_equals_numpy(rows, container, dtype):
  x, w, packed = _packed((rows, 72), (72, 530), container, dtype)
  want = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
  tolerance = 1e-5 if dtype == 'float32' else 8e-3
  for product in (integer_matmul.integer_matmul, integer_matmul.reference):
    got = jax.jit(product, static_argnums=2)(x, packed, 4)
    assert got.dtype == x.dtype
    error = np.abs(np.asarray(got, np.float64) - want)
    assert np.max(error) <= tolerance * np.max(np.abs(want))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('container', [None, jnp.int8, jnp.int32])
@pytest.mark.parametrize('rows', [1, 3, 7, 35])
def test_transposed_weights_equal_numpy(rows, container, dtype):
  x, w = _operands((rows, 530), (72, 530), dtype)
  stored, bits = w, 8
  if container is not None:
    _, w, stored = _packed((rows, 530), (72, 530), container, dtype)
    bits = 4
  want = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
  tolerance = 1e-5 if dtype == 'float32' else 8e-3
  for product in (integer_matmul.integer_matmul, integer_matmul.reference):
    got = jax.jit(product, static_argnums=(2, 3))(x, stored, bits, True)
    assert got.dtype == x.dtype
    error = np.abs(np.asarray(got, np.float64) - want)
    assert np.max(error) <= tolerance * np.max(np.abs(want))


def test_gradient_with_int4():
  x, w, packed = _packed((2, 16), (16, 24), jnp.int32)
  cotangent = jnp.cos(jnp.arange(48.0)).reshape(2, 24)
  got = jax.jit(
    jax.grad(
      lambda x: jnp.sum(cotangent * integer_matmul.integer_matmul(x, packed, 4))
    )
  )(x)
  want = np.asarray(cotangent) @ np.asarray(w, np.float32).T
  np.testing.assert_allclose(
    got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max()
  )


def test_gradient_and_vmap():
  x, w = _operands((2, 16), (16, 24))
  cotangent = jnp.cos(jnp.arange(48.0)).reshape(2, 24)

  def loss(product, x, w):
    return jnp.sum(cotangent * product(x, w))

  got, want = (
    jax.jit(
      jax.vmap(jax.value_and_grad(loss, 1), (None, 0, 0)), static_argnums=0
    )(product, jnp.stack([x, -2 * x]), jnp.stack([w, w // 2]))
    for product in (integer_matmul.integer_matmul, integer_matmul.reference)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3),
    got,
    want,
  )


@pytest.mark.parametrize(
  'eqn, x_shape, w_shape, has_kernel',
  [
    ('bd,df->bf', (2, 1024), (1024, 1030), True),
    ('...y,yz->...z', (4, 1, 1024), (1024, 1030), True),
    ('btd,dnh->btnh', (2, 1, 1024), (1024, 8, 130), True),
    ('btnh,nhd->btd', (2, 1, 8, 130), (8, 130, 1024), True),
    ('bd,df->bf', (32, 1024), (1024, 1030), True),
    ('...d,kdnh->...knh', (2, 1, 1024), (3, 1024, 8, 130), True),
    ('btnh,dnh->btd', (2, 1, 8, 130), (1024, 8, 130), True),
    # The activations' contracted dimensions are not the last.
    ('bnth,dnh->btd', (2, 8, 1, 130), (1024, 8, 130), False),
    # Many rows, a small weight.
    ('bd,df->bf', (33, 1024), (1024, 1030), False),
    ('bd,df->bf', (2, 256), (256, 300), False),
  ],
)
def test_einsum_of_quantized_layers(eqn, x_shape, w_shape, has_kernel):
  x, w = _operands(x_shape, w_shape)
  scale = jnp.float32(0.5)
  einsum = lambda x, w: operations.einsum(eqn, x, w, scale)
  lowered = jax.jit(einsum).lower(x, w)
  assert (integer_matmul.KERNEL in lowered.as_text()) == has_kernel
  want = 0.5 * np.einsum(eqn, x, np.asarray(w, np.float32), optimize=True)
  np.testing.assert_allclose(
    lowered.compile()(x, w), want, rtol=1e-5, atol=1e-4 * np.max(np.abs(want))
  )


@pytest.mark.parametrize(
  'eqn, x_shape, w_shape, dim, has_kernel',
  [
    ('bd,df->bf', (2, 1024), (1024, 1030), 0, True),
    ('btnh,nhd->btd', (2, 1, 8, 160), (8, 160, 1024), 0, True),
    ('btnh,nhd->btd', (2, 1, 8, 160), (8, 160, 1024), 1, True),
    ('btd,kdnh->btknh', (2, 1, 1024), (3, 1024, 8, 130), 1, True),
    ('btd,kdnh->btknh', (2, 1, 1024), (8, 1024, 8, 130), 0, False),
    ('btnh,dnh->btd', (2, 1, 8, 130), (1024, 8, 130), 0, True),
    ('btnh,dnh->btd', (2, 1, 8, 136), (1024, 8, 136), 2, False),
    # Packed along the columns; many rows. The unpacked weight is multiplied.
    ('bd,df->bf', (2, 1024), (1024, 1032), 1, False),
    ('bd,df->bf', (33, 1024), (1024, 1030), 0, False),
  ],
)
def test_einsum_of_packed_weights(eqn, x_shape, w_shape, dim, has_kernel):
  x, w, packed = _packed(x_shape, w_shape, jnp.int32, dim=dim)

  def einsum(x, packed):
    weight = int4_packing.PackedWeight(packed, dim, jnp.int8)
    scale = jnp.float32(0.5)
    return operations.einsum(eqn, x, weight.unpack(), scale, packed=weight)

  # The operand of the kernel is the packed weight.
  lowered = jax.jit(einsum).lower(x, packed)
  assert ('bits = 4' in lowered.as_text()) == has_kernel
  want = 0.5 * np.einsum(eqn, x, np.asarray(w, np.float32), optimize=True)
  np.testing.assert_allclose(
    lowered.compile()(x, packed),
    want,
    rtol=1e-5,
    atol=1e-5 * np.abs(want).max(),
  )


def test_small_weights_have_a_kernel_for_few_rows_of_bfloat16_only():
  x, w = _operands((8, 256), (256, 300))
  assert not integer_matmul.is_fast(x, w, 8)
  assert integer_matmul.is_fast(x.astype(jnp.bfloat16), w, 8)
  assert not integer_matmul.is_fast(x.astype(jnp.bfloat16), w, 9)


@pytest.mark.parametrize('container', [jnp.int8, jnp.int32])
@pytest.mark.parametrize('dtype', [jnp.int8, jnp.uint8])
def test_linear_reads_what_it_stores(container, dtype):
  """A Linear of int4, and of uint4, which has no kernel."""
  if dtype == jnp.uint8 and container == jnp.int8:
    pytest.skip('uint4 is packed into int32 only')
  rng = np.random.default_rng(0)
  w = rng.integers(*((-8, 8) if dtype == jnp.int8 else (0, 16)), (1024, 1032))
  layer = quantization.Linear.config(
    input_dims=1024,
    output_dims=1032,
    quantization=quantization_hparams.QuantizationParams(
      weight_params=quantization_hparams.WeightQuantizationParams(
        precision=4, dtype=dtype, int4_packed_weights_container_dtype=container
      )
    ),
  ).Instantiate(name='linear')
  x, _ = _operands((2, 1024), (1, 1))
  variables = {
    'params': {
      'w': int4_packing.pack_4bit(jnp.asarray(w, dtype), 0, container),
      'w_quantized_scale': jnp.full([1032], 0.25, jnp.float32),
    }
  }
  with base_layer.JaxContext.new_context():
    text = jax.jit(layer.apply).lower(variables, x).as_text()
    got = jax.jit(layer.apply)(variables, x)
  assert ('bits = 4' in text) == (dtype == jnp.int8)
  want = 0.25 * np.asarray(x, np.float64) @ w
  np.testing.assert_allclose(
    got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max()
  )


def test_other_platforms_and_meshes_have_no_kernel():
  x, w = _operands((2, 1024), (1024, 1024))
  scale = jnp.float32(0.5)
  einsum = lambda x, w: operations.einsum('bd,df->bf', x, w, scale)
  with py_utils.tracing_for('tpu'):
    assert not _has_kernel(einsum, x, w)
  mesh = jax.make_mesh((2,), ('mdl',), (jax.sharding.AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert not _has_kernel(einsum, x, w)
  text = (
    jax.jit(integer_matmul.integer_matmul)
    .trace(x, w)
    .lower(lowering_platforms=('tpu',))
    .as_text()
  )
  assert integer_matmul.KERNEL not in text


def test_shapes_that_do_not_fit_are_errors():
  x, w = _operands((2, 16), (17, 24))
  call = jax.ffi.ffi_call(
    integer_matmul.KERNEL, jax.ShapeDtypeStruct((2, 24), jnp.float32)
  )

  def run(bits, transposed=False):
    attributes = {'bits': np.int64(bits), 'transposed': transposed}
    jax.block_until_ready(call(x, w, **attributes))

  with pytest.raises(jax.errors.JaxRuntimeError, match='must give out'):
    run(8)
  with pytest.raises(jax.errors.JaxRuntimeError, match='int4 in int8 or int32'):
    run(2)
  with pytest.raises(jax.errors.JaxRuntimeError, match='must give out'):
    # 16 rows are 8 elements of int8, not 17.
    run(4)
  with pytest.raises(jax.errors.JaxRuntimeError, match='must give out'):
    run(8, transposed=True)
