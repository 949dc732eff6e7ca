# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The arithmetic of quantization against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.quantization import operations, optimization
from praxis.layers.quantization.quantization_hparams import (
  QuantizedTrainingParams,
  WeightQuantizationParams,
)
from tests.praxis.layers import running
from tests.testing import nightly

_X, _W = running.normal(2, 3, 8), running.normal(8, 4, 6, seed=2)
_EQN = '...D,DNH->...NH'


def _ints(t, axes, bits=8, symmetric=True):
  """Returns t as integers, their scale and zero point times it, by numpy."""
  t = np.asarray(t)
  low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
  if symmetric:
    scale, zero = np.abs(t).max(axes, keepdims=True) / high, 0.0
  else:
    least = t.min(axes, keepdims=True)
    scale = (t.max(axes, keepdims=True) - least) / (high - low)
    zero = low - least / scale
  q = np.clip(np.round(t / scale + zero), low, high)
  return q, scale, zero * scale


def _restored(*args, **kwargs):
  q, scale, zero = _ints(*args, **kwargs)
  return q * scale - zero


@pytest.mark.parametrize(
  ('dtype', 'bits', 'symmetric'),
  # bfloat16 itself has 8 bits.
  [
    (jnp.float32, 4, True),
    (jnp.float32, 8, False),
    (jnp.float32, 12, True),
    (jnp.bfloat16, 4, False),
    (jnp.bfloat16, 8, True),
    *nightly.cases(
      (jnp.float32, 4, False),
      (jnp.float32, 8, True),
      (jnp.float32, 12, False),
      (jnp.bfloat16, 4, True),
      (jnp.bfloat16, 8, False),
    ),
  ],
)
def test_numbers_are_within_half_a_step(bits, symmetric, dtype):
  w = _W.astype(dtype)
  reduce = lambda w: operations.reduce_precision(
    w, [0], bits=bits, use_symmetric=symmetric
  )
  q, scale, zero = running.jit(reduce)(w)
  assert q.dtype == (jnp.int8 if bits <= 8 else jnp.int16)
  assert scale.shape == (1, 4, 6) and (zero is None) == symmetric
  restored = np.asarray(q * scale - (0 if zero is None else zero), np.float32)
  if dtype == jnp.float32:
    want = _restored(_W, 0, bits=bits, symmetric=symmetric)
    np.testing.assert_allclose(restored, want, atol=1e-5)
  slack = 0.51 if dtype == jnp.float32 else 0.51 + 2.0 ** (bits - 8)
  error = np.abs(restored - np.asarray(w, np.float32))
  assert np.all(error <= slack * np.asarray(scale, np.float32) + 1e-6)


def test_zeros_have_a_scale_and_a_range_can_be_narrowed():
  zeros = jnp.zeros((4, 2))
  assert operations.reduce_precision(zeros, [0])[1].tolist() == [[1.0, 1.0]]
  _, scale, _ = operations.reduce_precision(
    zeros, [0], add_scale_eps=True, scale_eps=0.5
  )
  assert scale.tolist() == [[0.5, 0.5]]
  _, full, _ = operations.reduce_precision(_W, [0])
  _, part, _ = operations.reduce_precision(_W, [0], percentile=0.5)
  np.testing.assert_allclose(part, full / 2)


@pytest.mark.parametrize('per_channel', [True, False])
def test_the_search_finds_the_best_factor(per_channel):
  t = np.array(_W).reshape(8, 24)
  t[0, 3] = 9.0
  bound = np.abs(t).max(0, keepdims=True)
  factors = np.linspace(1.0, 0.5, 11)

  def error(factor):
    scale = bound * factor / 7
    return np.abs(np.clip(np.round(t / scale), -8, 7) * scale - t)

  errors = np.stack([error(f) for f in factors])
  if per_channel:
    want = bound * factors[errors.mean(1).argmin(0)]
  else:
    want = bound * factors[errors.mean((1, 2)).argmin()]
  got = optimization.get_best_bound(
    jnp.asarray(t), jnp.asarray(bound), -8, 7, per_channel=per_channel
  )
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_one_bit_keeps_signs_and_fp4_and_fp8_their_values():
  q, scale, zero = operations.reduce_precision(
    _W, [0], bits=1, quant_method='bin'
  )
  w = np.asarray(_W)
  np.testing.assert_array_equal(q, np.sign(w))
  np.testing.assert_allclose(scale, np.abs(w).mean(0, keepdims=True), rtol=1e-6)
  assert zero is None
  _, scale, _ = operations.reduce_precision(_W, [0], bits=1)
  assert np.isinf(scale).all()
  near = operations.FP4().round(jnp.array([0.2, 2.6, -5.1, 99.0]))
  np.testing.assert_array_equal(near, [0.0, 3.0, -6.0, 6.0])
  bits, scale, _ = operations.reduce_precision(_W, [0], use_fp=True)
  numbers = jax.lax.bitcast_convert_type(bits, jnp.float8_e4m3fn)
  np.testing.assert_allclose(
    numbers.astype(jnp.float32) * scale, w, rtol=2**-4, atol=1e-4
  )


@pytest.mark.parametrize(
  ('eqn', 'shape', 'axis', 'symmetric'),
  [
    ('...D,DNH->...NH', (8, 4, 6), 0, True),
    ('abD,KDNH->KabNH', (3, 8, 4, 6), 1, False),
    ('...D,HD->...H', (5, 8), 1, False),
    *nightly.cases(
      ('...D,DNH->...NH', (8, 4, 6), 0, False),
      ('abD,KDNH->KabNH', (3, 8, 4, 6), 1, True),
      ('...D,HD->...H', (5, 8), 1, True),
    ),
  ],
)
def test_products_of_quantized_weights_are_those_of_restored_ones(
  eqn, shape, axis, symmetric
):
  w = running.normal(*shape, seed=4)

  @running.jit
  def product(w):
    q, scale, zero = operations.reduce_einsum_weight_precision(
      eqn, w, jnp.float32, use_symmetric=symmetric
    )
    return scale, operations.einsum(eqn, _X, q, scale, zero)

  scale, got = product(w)
  assert scale.shape == tuple(n for i, n in enumerate(shape) if i != axis)
  restored = _restored(w, axis, symmetric=symmetric)
  np.testing.assert_allclose(got, np.einsum(eqn, _X, restored), atol=2e-5)


@pytest.mark.parametrize(
  ('per_channel', 'symmetric'),
  [
    (True, False),
    (False, True),
    *nightly.cases((True, True), (False, False)),
  ],
)
def test_integers_times_integers(per_channel, symmetric):

  @running.jit
  def product(x, w):
    q, scale, _ = operations.reduce_einsum_weight_precision(
      _EQN, w, jnp.float32
    )
    x, act_scale, act_zero = operations.reduce_einsum_activation_precision(
      _EQN, x, per_channel=per_channel, symmetric=symmetric
    )
    return x, operations.einsum(
      _EQN, x, q, scale, scale_act=act_scale, zp_act=act_zero
    )

  x, got = product(_X, _W)
  assert x.dtype == jnp.int8
  axes = -1 if per_channel else None
  restored = _restored(_X, axes, symmetric=symmetric)
  want = np.einsum(_EQN, restored, _restored(_W, 0))
  np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize('value', [0.7, -0.7, 0.0, 300.0])
def test_equal_values_keep_their_zero_point_in_bfloat16(value):
  quantized = operations.reduce_precision(
    jnp.full((4, 3), value), [0], use_symmetric=False
  )
  q, scale, zero = (jnp.asarray(x, jnp.bfloat16) for x in quantized)
  got = np.asarray(q * scale - zero, np.float32)
  np.testing.assert_allclose(got, np.full((4, 3), value), rtol=0.02)


@pytest.mark.parametrize(('dtype', 'rows'), [(jnp.int16, 8), (jnp.int8, 2**17)])
def test_sums_beyond_int32_do_not_wrap(dtype, rows):
  x = jnp.full((2, rows), jnp.iinfo(dtype).min, dtype)
  w = jnp.full((rows, 3), jnp.iinfo(dtype).min, dtype)
  got = operations.einsum('bd,df->bf', x, w, jnp.ones(3))
  want = rows * float(jnp.iinfo(dtype).min) ** 2
  np.testing.assert_allclose(got, np.full((2, 3), want), rtol=1e-6)


def test_the_gradient_passes_the_rounding():
  def loss(w):
    restored = operations.fakequant_einsum(_EQN, w, bits=4)
    return jnp.sum(restored * jnp.cos(_W))

  got = running.jit(operations.fakequant_einsum, static_argnums=0)(_EQN, _W)
  np.testing.assert_allclose(got, _restored(_W, 0), atol=1e-5)
  grad = np.asarray(running.jit(jax.grad(loss))(_W))
  # All but the largest of a channel: those are in the scale, or clipped, too.
  inner = np.abs(_ints(_W, 0, bits=4)[0]) < 7
  np.testing.assert_allclose(grad[inner], np.cos(_W)[inner], atol=1e-5)


def test_blocks_have_scales_of_their_own():
  restore = lambda w: operations.fakequant_einsum(_EQN, w, bits=4, block_size=4)
  got = running.jit(restore)(_W)
  blocks = np.asarray(_W).reshape(2, 4, 4, 6)
  want = _restored(blocks, 1, bits=4).reshape(_W.shape)
  np.testing.assert_allclose(got, want, atol=1e-6)
  shape, dims = operations.get_sub_channel_shape([8, 4, 6], 4, [0])
  assert (shape, dims) == ([2, 4, 4, 6], [1])
  shape, _ = operations.get_sub_channel_shape([8, 4], 4, [0], False)
  assert shape == [4, 8]
  with pytest.raises(ValueError, match='block_size must divide 8'):
    operations.get_sub_channel_shape(
      [8, 4], 3, [0], error_on_misaligned_shape=True
    )


def test_quantized_training_is_near_the_float_product():
  params = QuantizedTrainingParams(einsum_output_dtype=jnp.float32)
  eqn = 'abD,DNH->abNH'

  def product(x, w):
    key = jax.random.key(0)
    return operations.custom_einsum(x, w, eqn=eqn, prng_key=key, params=params)

  @running.jit
  def run(x, w, g):
    y, vjp = jax.vjp(product, x, w)
    return y, *vjp(g)

  g = running.normal(2, 3, 4, 6, seed=5)
  y, x_grad, w_grad = run(_X, _W, g)
  want = np.einsum(eqn, _restored(_X, -1), _restored(_W, 0))
  np.testing.assert_allclose(y, want, atol=1e-4)
  for got, exact in (
    (x_grad, np.einsum('abNH,DNH->abD', g, _W)),
    (w_grad, np.einsum('abD,abNH->DNH', _X, g)),
  ):
    assert np.abs(got - exact).max() < 0.03 * np.abs(exact).max()


def test_noise_is_of_the_size_of_the_weight():
  wp = WeightQuantizationParams(vn_scale=0.1, vn_start_step=3)
  key = jax.random.key(1)
  run = lambda step: operations.fakequant_vn(_EQN, _W, key, wp, step)
  np.testing.assert_array_equal(run(jnp.int32(2)), _W)
  bound = 0.05 * np.abs(_W).max(0, keepdims=True)
  noise = np.abs(run(jnp.int32(3)) - _W)
  assert np.all(noise <= bound + 1e-6) and noise.max() > bound.max() / 3
  with pytest.raises(ValueError, match='step must be given'):
    operations.fakequant_vn(_EQN, _W, key, wp)
  with pytest.raises(ValueError, match='vn_scale'):
    operations.fakequant_vn(_EQN, _W, key, WeightQuantizationParams())


def test_factors_of_full_rank_give_the_weight():
  left, right = operations.factorize_weight(_W.reshape(8, 24), 8)
  np.testing.assert_allclose(left @ right, _W.reshape(8, 24), atol=1e-5)


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="must not have '...'"):
    operations.compute_offset(_EQN, _X, _W[0])
  with pytest.raises(ValueError, match='exclude each other'):
    operations.custom_einsum(
      _X,
      _W,
      eqn=_EQN,
      prng_key=jax.random.key(0),
      params=QuantizedTrainingParams(cast_bits_fwd=8),
    )
  with pytest.raises(ValueError, match='two arguments'):
    operations.eqn_to_weight_contract_dims('a->b')
  with pytest.raises(ValueError, match='eqn must be given'):
    operations.fakequant_activation(_X, per_channel=True)
  with pytest.raises(ValueError, match='needs a key'):
    operations.reduce_precision(_W, 0, random_rounding=True)
