# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Products in fp8 against numpy and Flax; scales and histories over steps."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.linen import fp8_ops

from praxis import base_layer, pax_fiddle
from praxis.layers import linears, pipeline, repeats
from praxis.layers.injection import fp8_current_scaling, fp8_nvidia_gpu
from tests.praxis.layers import running
from tests.testing import nightly

_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
_FLAGS = base_layer.WeightHParamsCollection


def _fp8(x, scale, dtype=_E4M3):
  """Returns x as fp8 says it: rounded in units of the scale, and clipped."""
  bound = float(ml_dtypes.finfo(dtype).max)
  rounded = np.clip(x / scale, -bound, bound).astype(dtype)
  return rounded.astype(np.float32) * np.float32(scale)


def _op(cls=fp8_nvidia_gpu.Fp8EinsumOp, **fields):
  layer = cls.config(amax_history_length=3, name='op', **fields).Instantiate()
  args = ['bd,df->bf', _X, *[_W] * (1 + issubclass(cls, _GATED))]
  return layer, jax.jit(lambda key: layer.init(key, *args))(jax.random.key(0))


_GATED = fp8_nvidia_gpu.Fp8EinsumGatedOp
_X = running.normal(4, 8) * 5
_W = running.normal(8, 6, seed=2)
_G = np.asarray(running.normal(4, 6, seed=3)) * 100


@pytest.mark.parametrize('direct', [True, False])
def test_products_gradients_and_scales_follow_the_numbers(direct):
  layer, variables = _op(use_direct_quant=direct)
  assert running.shapes(variables) == {
    f'{tensor}_{what}': shape
    for tensor in ('input', 'kernel', 'output_grad')
    for what, shape in (('scale', (1,)), ('amax_history', (3,)))
  }

  @running.jit
  def step(params, x, w):
    apply = lambda p, x, w: layer.apply({'params': p}, 'bd,df->bf', x, w)
    y, vjp = jax.vjp(apply, params, x, w)
    return y, *vjp(jnp.asarray(_G))

  x, w = np.asarray(_X), np.asarray(_W)
  params, scales = variables['params'], dict.fromkeys('xwg', 1.0)
  for i in range(2):
    y, params, x_grad, w_grad = step(params, _X, _W)
    xq, wq = _fp8(x, scales['x']), _fp8(w, scales['w'])
    gq = _fp8(_G, scales['g'], _E5M2)
    np.testing.assert_allclose(y, xq @ wq, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(x_grad, gq @ wq.T, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(w_grad, xq.T @ gq, rtol=1e-5, atol=1e-2)
    for name, array, tensor, largest in (
      ('x', x, 'input', 448.0),
      ('w', w, 'kernel', 448.0),
      ('g', _G, 'output_grad', 57344.0),
    ):
      amax = np.abs(array).max()
      # The scale is of the steps before, the history has this one.
      np.testing.assert_allclose(params[f'{tensor}_scale'], scales[name])
      want = np.zeros(3)
      want[0] = amax
      want[-1] = amax if i else 0.0
      np.testing.assert_allclose(params[f'{tensor}_amax_history'], want)
      scales[name] = np.float32(amax) / np.float32(largest)


def test_delayed_scaling_is_that_of_flax():
  """Outputs, gradients and the next scales, where jnp.einsum swaps operands."""
  equation, x, w = 'btd,ndh->btnh', running.normal(2, 3, 8), _W.reshape(2, 8, 3)
  layer, _ = _op()
  flax_layer = fp8_ops.Fp8Einsum(amax_history_length=3)
  collection = fp8_ops.OVERWRITE_WITH_GRADIENT

  def run(apply, params):
    y, vjp = jax.vjp(apply, params, x, w)
    return y, *vjp(100 * jnp.cos(y))

  @running.jit
  def steps(params):
    ours = theirs = params
    for _ in range(2):
      y, ours, *grads = run(
        lambda p, x, w: layer.apply({'params': p}, equation, x, w), ours
      )
      flax_y, theirs, *flax_grads = run(
        lambda p, x, w: flax_layer.apply({collection: p}, equation, x, w),
        theirs,
      )
    return (y, ours, grads), (flax_y, theirs, flax_grads)

  flax_variables = jax.jit(flax_layer.init, static_argnums=1)(
    jax.random.key(0), equation, x, w
  )
  ours, theirs = steps(flax_variables[collection])
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
    ours,
    theirs,
  )


def _power_of_two_scale(x, dtype=_E4M3):
  ratio = np.abs(np.asarray(x)).max() / float(ml_dtypes.finfo(dtype).max)
  return 2.0 ** np.ceil(np.log2(ratio))


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_current_scaling_follows_the_numbers(dtype):
  layer = fp8_nvidia_gpu.Fp8CurrentScalingEinsumOp.config(
    name='op', fprop_dtype=dtype
  ).Instantiate()
  x, w, g = (jnp.asarray(a, dtype) for a in (1e-4 * _X, 300 * _W, _G))
  assert not jax.jit(lambda key: layer.init(key, 'bd,df->bf', x, w))(
    jax.random.key(0)
  )

  @running.jit
  def step(x, w, g):
    y, vjp = jax.vjp(lambda x, w: layer.apply({}, 'bd,df->bf', x, w), x, w)
    return y, *vjp(g)

  y, x_grad, w_grad = (np.asarray(a, np.float32) for a in step(x, w, g))
  x, w, g = (np.asarray(a, np.float32) for a in (x, w, g))
  xq = _fp8(x, _power_of_two_scale(x))
  wq = _fp8(w, _power_of_two_scale(w))
  gq = _fp8(g, _power_of_two_scale(g, _E5M2), _E5M2)
  # Scales round nothing; products are rounded to the dtype once.
  rtol = 1e-5 if dtype == jnp.float32 else 2**-8
  for array, want in (
    (y, xq @ wq),
    (x_grad, gq @ wq.T),
    (w_grad, xq.T @ gq),
  ):
    atol = 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(array, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize('dtype', [jnp.float8_e4m3fn, jnp.float8_e5m2])
@pytest.mark.parametrize('size', [1e-30, 1e-34, 1e-36, 2e-38, 1e38])
def test_current_scaling_of_any_size(size, dtype):
  x = jnp.full((4, 8), size).at[0].set(0.0)
  quantized = running.jit(fp8_current_scaling.quantize, static_argnums=1)(
    x, dtype
  )
  values = np.asarray(quantized.values, np.float64)
  restored = values * np.asarray(quantized.scale, np.float64)
  # Three bits of mantissa, or two.
  np.testing.assert_allclose(restored, x, rtol=0.125)


def test_current_scaling_of_zeros_and_of_infinities():
  layer = fp8_nvidia_gpu.Fp8CurrentScalingEinsumGatedOp.config(
    name='op'
  ).Instantiate()

  @running.jit
  def run(x):
    return layer.apply({}, 'bd,df->bf', x, _W, jnp.zeros_like(_W))

  y, gated = run(jnp.zeros_like(_X))
  assert np.all(y == 0.0) and np.all(gated == 0.0)
  y, gated = run(_X)
  want = _fp8(np.asarray(_X), _power_of_two_scale(_X)) @ _fp8(
    np.asarray(_W), _power_of_two_scale(_W)
  )
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4)
  assert np.all(gated == 0.0)
  # The learner must see it: 448 times the scale is finite.
  for value in (np.inf, -np.inf, np.nan):
    y, _ = run(_X.at[0, 0].set(value))
    assert not np.any(np.isfinite(y))


@pytest.mark.parametrize(
  ('value', 'direct'),
  nightly.except_for(
    [(np.inf, True), (-np.inf, False)],
    itertools.product((np.inf, -np.inf, np.nan), (True, False)),
  ),
)
def test_delayed_scaling_saturates_no_infinity(direct, value):
  layer, variables = _op(use_direct_quant=direct)

  @running.jit
  def step(x, w, g):
    apply = lambda x, w: layer.apply(variables, 'bd,df->bf', x, w)
    y, vjp = jax.vjp(apply, x, w)
    return y, *vjp(g)

  g = jnp.asarray(_G)
  assert all(np.all(np.isfinite(a)) for a in step(_X, _W, g))
  # The learner must see it; the history would keep the scale for 1024 steps.
  for operands in (
    (_X.at[0, 0].set(value), _W, g),
    (_X, _W.at[0, 0].set(value), g),
  ):
    assert np.any(np.isnan(step(*operands)[0]))
  _, x_grad, w_grad = step(_X, _W, g.at[0, 0].set(value))
  assert np.any(np.isnan(x_grad)) and np.any(np.isnan(w_grad))


@pytest.mark.parametrize('direct', [True, False])
def test_a_gate_has_its_own_product_and_shares_the_input(direct):
  layer, variables = _op(_GATED, use_direct_quant=direct)
  assert len(variables['params']) == 10
  gate = 3 * _W + 1

  @running.jit
  def run(params):
    apply = lambda p: layer.apply({'params': p}, 'bd,df->bf', _X, _W, gate)
    (y, gated), vjp = jax.vjp(apply, params)
    return y, gated, vjp((jnp.ones_like(y), 2 * jnp.ones_like(y)))[0]

  y, gated, params = run(variables['params'])
  xq = _fp8(np.asarray(_X), 1.0)
  np.testing.assert_allclose(y, xq @ _fp8(np.asarray(_W), 1.0), rtol=1e-4)
  # Upstream returns the ungated product for both.
  np.testing.assert_allclose(
    gated, xq @ _fp8(np.asarray(gate), 1.0), rtol=1e-4, atol=1e-4
  )
  firsts = {k: float(v[0]) for k, v in params.items() if 'history' in k}
  np.testing.assert_allclose(
    firsts['kernel_amax_history_gated'], np.abs(gate).max()
  )
  np.testing.assert_allclose(firsts['input_amax_history'], np.abs(_X).max())
  np.testing.assert_allclose(firsts['output_grad_amax_history_gated'], 2.0)


def test_variables_are_written_by_the_learner_and_stay_float32():
  cfg = linears.Linear.config(
    input_dims=4,
    output_dims=3,
    fprop_dtype=jnp.bfloat16,
    einsum_tpl=pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp),
  )
  layer = cfg.Instantiate(name='linear')
  x = jnp.ones((2, 5, 4), jnp.bfloat16)
  hparams = layer.abstract_init_with_metadata(x)['params']['einsum']
  assert len(hparams) == 6
  for name, hp in hparams.items():
    assert hp.dtype == jnp.float32
    assert tuple(hp.shape) == ((1,) if 'scale' in name else (1024,))
    assert _FLAGS.OVERWRITE_WITH_GRADIENT in hp.collections
    assert _FLAGS.DISALLOW_BFLOAT16_CONVERSION in hp.collections
  variables = jax.jit(layer.init)(jax.random.key(0), x)
  outputs = running.run(layer, variables, x)
  assert outputs.dtype == jnp.bfloat16
  w = np.asarray(variables['params']['w'].astype(jnp.bfloat16), np.float32)
  want = np.ones((2, 5, 4)) @ _fp8(w, 1.0)
  np.testing.assert_allclose(outputs.astype(np.float32), want, atol=0.02)


def test_repeated_layers_have_scales_of_their_own():
  linear = linears.Linear.config(
    input_dims=4,
    output_dims=4,
    einsum_tpl=pax_fiddle.Config(
      fp8_nvidia_gpu.Fp8EinsumOp, amax_history_length=2
    ),
  )
  layer = repeats.Repeat.config(sub_tpl=linear, x_times=2, name='r')
  layer = layer.Instantiate()
  x = running.normal(2, 4)
  variables = jax.jit(layer.init)(jax.random.key(0), x)
  loss = lambda p: jnp.sum(layer.apply({'params': p}, x))
  grads = running.jit(jax.grad(loss))(variables['params'])
  history = grads['sub']['einsum']['input_amax_history']
  assert history.shape == (2, 2)
  assert history[0, 0] == np.abs(x).max() != history[1, 0]


def test_wrong_operands_and_settings_are_refused():
  layer, variables = _op()
  with pytest.raises(ValueError, match='multiplies 2 operands, got 1'):
    layer.apply(variables, 'bd,df->bf', _X)
  with pytest.raises(ValueError, match='must have fprop_dtype float32'):
    layer.apply(variables, 'bd,df->bf', _X, _W.astype(jnp.bfloat16))
  bad = fp8_nvidia_gpu.Fp8EinsumOp.config(amax_history_length=0, name='op')
  with pytest.raises(ValueError, match='amax_history_length must be positive'):
    bad.Instantiate().init(jax.random.key(0), 'bd,df->bf', _X, _W)


def test_microbatches_of_a_pipeline_give_the_largest():
  linear = linears.Linear.config(
    input_dims=4,
    output_dims=4,
    einsum_tpl=pax_fiddle.Config(
      fp8_nvidia_gpu.Fp8EinsumOp, amax_history_length=2
    ),
  )
  layer = pipeline.CircularLayerwiseShardablePipelined.config(
    name='p',
    num_stages=2,
    num_microbatches=4,
    circular_repeat=2,
    single_stage_body=linear,
  ).Instantiate()
  x = running.normal(8, 4)
  variables = jax.jit(layer.init)(jax.random.key(0), x)

  def loss(params):
    # As pax.steps do.
    params = jax.tree_util.tree_map_with_path(
      lambda path, p: (
        jax.lax.convert_element_type(p, fp8_ops.fm32)
        if 'einsum' in jax.tree_util.keystr(path)
        else p
      ),
      params,
    )
    return jnp.sum(layer.apply({'params': params}, x))

  grads = running.jit(jax.grad(loss))(variables['params'])['body']
  w, op = np.abs(variables['params']['body']['w']), grads['einsum']
  np.testing.assert_allclose(op['kernel_amax_history'][..., 0], w.max((2, 3)))
  np.testing.assert_allclose(op['input_amax_history'][0, 0, 0], np.abs(x).max())
  assert np.all(op['input_scale'] == 1.0)


def test_a_quantized_dot_replaces_the_product():
  one, history = jnp.ones(1), jnp.zeros(3)
  x, w = jnp.asarray(_X), jnp.asarray(_W)

  @fp8_nvidia_gpu.quantized_dot_config(
    jnp.float32, x.astype(_E4M3), one, w.astype(_E4M3), one, one, history
  )
  def dot_general(lhs, rhs, dimension_numbers, **kwargs):
    raise AssertionError('its body is not used')

  def product(x, w):
    return jnp.einsum('bd,df->bf', x, w, _dot_general=dot_general)

  @running.jit
  def product_and_gradients(x, w):
    y, pull = jax.vjp(product, x, w)
    return y, pull(jnp.ones_like(y))

  y, (dx, _) = product_and_gradients(x, w)
  assert y.dtype == jnp.float32
  x8, w8 = _fp8(np.asarray(x), 1), _fp8(np.asarray(w), 1)
  np.testing.assert_allclose(y, x8 @ w8, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(dx, np.ones(y.shape) @ w8.T, rtol=1e-5, atol=1e-5)
