# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Transformer layers of state space models against numpy, and decoding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions, ssm, ssm_transformers
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D = 2, 5, 4
_CACHE = [base_layer.DECODE_CACHE]


def _config(cls=ssm_transformers.SSMTransformer, **kwargs):
  is_gated = cls is ssm_transformers.SSMGated
  return cls.config(
    input_dims=_D,
    hidden_dims=6,
    num_heads=2,
    ssm_nheads=3,
    ssm_dim=2 if is_gated else _D,
    ssm_l_max=8,
    decode_num_samples=1,
  ).set(**kwargs)


def _inputs():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  return x, jnp.zeros([_B, _T]), mask


def _cross():
  return running.normal(_B, 3, _D, seed=2), jnp.zeros([_B, 1, _T, 3])


def _linear(x, weights):
  return x @ weights['linear']['w'] + weights['bias']['b']


def _gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _ssm(x, weights):
  """The recurrence, a step at a time; ssm_test.py has the eigenvalues."""
  a = ssm.make_dplr_hippo(3, 'LegS')[0][:, None]
  c = weights['C_re'] + 1j * weights['C_im']
  decay = np.exp(0.1 * a)
  out = np.zeros(x.shape)
  for b in range(_B):
    state = np.zeros(c.shape, complex)
    for t in range(_T):
      state = decay * state + (decay - 1) / a * x[b, t]
      out[b, t] = (c * state).sum(axis=0).real + weights['D'][0] * x[b, t]
  return out


def _by_hand(params, x, policy, is_gated):
  params = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
  x = np.asarray(x, np.float64)
  hybrid = policy == 'primer_hybrid'
  before, after = (
    ('pre_layer_norm', 'post_layer_norm') if hybrid else ('layer_norm',) * 2
  )
  normed = x if policy == 'post' else numpy_layers.layer_norm(x, params[before])
  if is_gated:
    few = _gelu(_linear(normed, params['gss_ffn_u']))
    mixed = _linear(_ssm(few, params['ssm']), params['gss_ffn_uc'])
  else:
    mixed = _ssm(normed, params['ssm'])
  if policy != 'pre':
    mixed = numpy_layers.layer_norm(mixed, params[after])
  y = x + mixed
  if is_gated:
    gates = _gelu(_linear(normed, params['gss_ffn_v']))
    y = _gelu(_linear(y, params['gss_ffn_uco']))
    return _linear(y * gates, params['gss_ffn_o'])
  ff = params['ff_layer']
  z = y if policy == 'post' else numpy_layers.layer_norm(y, ff[before])
  z = np.maximum(_linear(z, ff['ffn_layer1']), 0)
  z = _linear(z, ff['ffn_layer2'])
  return y + (z if policy == 'pre' else numpy_layers.layer_norm(z, ff[after]))


@pytest.mark.parametrize(
  ('name', 'policy'),
  [
    ('SSMTransformer', 'pre'),
    ('SSMTransformer', 'primer_hybrid'),
    ('SSMGated', 'post'),
    *nightly.cases(
      ('SSMTransformer', 'post'),
      ('SSMGated', 'pre'),
      ('SSMGated', 'primer_hybrid'),
    ),
  ],
)
def test_layers_equal_numpy_and_their_steps(name, policy):
  cls = getattr(ssm_transformers, name)
  layer, variables = running.build(_config(cls, norm_policy=policy), *_inputs())
  (got, probs), cache = running.run(
    layer, variables, *_inputs(), mutable=_CACHE
  )
  is_gated = name == 'SSMGated'
  want = _by_hand(variables['params'], _inputs()[0], policy, is_gated)
  np.testing.assert_allclose(got, want, atol=1e-4)
  assert probs.self_atten is None
  assert set(cache[base_layer.DECODE_CACHE]) == {'ssm'}
  _check_steps(layer, variables, cache, got, at_once=policy == 'pre')


def _check_steps(layer, variables, cache, want, cross_mask=None, at_once=False):
  x, _, mask = _inputs()

  @running.jit
  def extend(cache, now, step, mask):
    return layer.apply(
      {**variables, **cache},
      now,
      time_step=step,
      attention_mask=mask,
      cross_attention_mask=cross_mask,
      method='extend_step',
      mutable=_CACHE,
    )

  for t in range(3):
    now = (x[:, t], jnp.int32(t), mask[:, :, t])
    got, cache = extend(cache, *now)
    np.testing.assert_allclose(got, want[:, t], atol=1e-4)
  if at_once:
    got, _ = extend(cache, x[:, 3:], jnp.int32(3), mask[:, :, 3:])
    np.testing.assert_allclose(got, want[:, 3:], atol=1e-4)


@pytest.mark.parametrize('name', ['SSMGated', *nightly.cases('SSMTransformer')])
def test_steps_continue_the_forward_pass(name):
  config = _config(
    getattr(ssm_transformers, name),
    ssm_tpl=ssm.SSM.config(continues_from_forward=True),
  )
  layer, variables = running.build(config, *_inputs())
  x, paddings, mask = _inputs()
  want = _by_hand(variables['params'], x, 'pre', name == 'SSMGated')
  _, cache = running.run(
    layer,
    variables,
    x[:, :3],
    paddings[:, :3],
    mask[:, :, :3, :3],
    mutable=_CACHE,
  )
  got, _ = running.run(
    layer,
    {**variables, **cache},
    x[:, 3:],
    time_step=jnp.int32(3),
    attention_mask=mask[:, :, 3:],
    method='extend_step',
    mutable=_CACHE,
  )
  np.testing.assert_allclose(got, want[:, 3:], atol=1e-4)


def test_cross_attention_and_its_steps():
  config = _config(use_cross_attention=True)
  layer, variables = running.build(config, *_inputs(), *_cross())
  run = running.compiled(layer, mutable=_CACHE)
  (got, probs), cache = run(variables, *_inputs(), *_cross())
  assert probs.cross_atten.shape == (_B, 2, _T, 3)
  other = (2 * _cross()[0], _cross()[1])
  (moved, _), _ = run(variables, *_inputs(), *other)
  assert not np.allclose(moved, got)
  _check_steps(layer, variables, cache, got, jnp.zeros([_B, 1, 1, 3]))


@pytest.mark.parametrize('name', ['SSMGated', *nightly.cases('SSMTransformer')])
def test_gradients_equal_numpy(name):
  cls = getattr(ssm_transformers, name)
  layer, variables = running.build(_config(cls), *_inputs())
  params = variables['params']
  direction = jax.tree.map(
    lambda w: np.random.default_rng(1).normal(size=w.shape), params
  )

  @running.jit
  @jax.grad
  def gradient(params):
    out, _ = layer.apply({'params': params}, *_inputs())
    return jnp.sum(jnp.sin(out))

  def by_hand(step):
    moved = jax.tree.map(
      lambda w, d: np.asarray(w, np.float64) + step * d, params, direction
    )
    x = _inputs()[0]
    return np.sum(np.sin(_by_hand(moved, x, 'pre', name == 'SSMGated')))

  found = gradient(params)
  along = jax.tree.map(lambda g, d: np.sum(g * d), found, direction)
  want = (by_hand(1e-5) - by_hand(-1e-5)) / 2e-5
  np.testing.assert_allclose(sum(jax.tree.leaves(along)), want, rtol=1e-3)


def test_decode_states_are_reordered_and_kept_for_samples():
  for samples, rows in ((1, 4), (2, 4)):
    config = _config(decode_num_samples=samples)
    layer, variables = running.build(config, *_inputs())
    shape = (_B * samples, 3, _D)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    state = {'ssm_state': jnp.asarray(numbers, jnp.complex64)}
    cache = {base_layer.DECODE_CACHE: {'ssm': state}}

    def transform(fn, layer=layer, variables=variables, cache=cache):
      _, new = layer.apply(
        {**variables, **cache},
        fn,
        method='transform_decode_state',
        mutable=_CACHE,
      )
      return new[base_layer.DECODE_CACHE]['ssm']['ssm_state']

    repeated = transform(lambda x, batch, time: jnp.repeat(x, 2, batch))
    assert repeated.shape[0] == rows
    swapped = transform(lambda x, batch, time: jnp.flip(x, batch))
    np.testing.assert_array_equal(swapped, numbers[::-1])
  assert layer.bind(variables).decoding_sequence_length() == 8


def test_bfloat16():
  for cls in (ssm_transformers.SSMTransformer, ssm_transformers.SSMGated):
    config = _config(cls, fprop_dtype=jnp.bfloat16)
    x, paddings, mask = _inputs()
    x = x.astype(jnp.bfloat16)
    layer, variables = running.build(config, x, paddings, mask)
    got, _ = running.run(layer, variables, x, paddings, mask)
    assert got.dtype == jnp.bfloat16
    is_gated = cls is ssm_transformers.SSMGated
    want = _by_hand(variables['params'], x, 'pre', is_gated)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'ssm_dim': 3}, 'ssm_dim of .* must be input_dims=4, got 3'),
    ({'norm_policy': 'before'}, 'norm_policy must be one of'),
    ({'ssm_nheads': 0}, 'nheads, dim, l_max and step_size > 0'),
  ],
)
def test_bad_settings(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**kwargs), *_inputs())
