# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Local attention in blocks against loops over pairs of positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from praxis import pax_fiddle
from praxis.layers import attentions
from praxis.layers.attentions import local
from tests.praxis.layers import running

_B, _T, _D, _N, _H = 2, 7, 6, 3, 2
_BLOCK = {'block_size': 3, 'left_context': 3, 'right_context': 1}
_KINDS = {
  'plain': attentions.LocalSelfAttention,
  'learned': attentions.LocalSelfAttentionRelativeBias,
  'alibi': attentions.LocalSelfAttentionAlibi,
  'xl': attentions.LocalSelfAttentionXL,
}


def _config(kind, **kwargs):
  fields = {
    'input_dim': _D,
    'hidden_dim': _D,
    'num_heads': _N,
    'internal_enable_per_dim_scale': False,
    **_BLOCK,
    **kwargs,
  }
  if kind == 'xl':
    fields['rel_pos_emb_dim'] = 4
  return pax_fiddle.Config(_KINDS[kind], **fields)


def _paddings():
  paddings = np.zeros((_B, _T), np.float32)
  paddings[1, 5:] = 1
  return attentions.convert_paddings_to_mask(jnp.asarray(paddings))


def _segments():
  ids = jnp.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 3, 3]])
  return attentions.causal_segment_mask(ids)


def _bias(kind, params, query, distance, block):
  """Returns what is added to the logits of a query, per head."""
  left = _BLOCK['left_context']
  if kind == 'learned':
    table = params['pos_emb_compressed']
    return table[:, (distance + left + block - 3) % table.shape[1]]
  if kind == 'alibi':
    slopes = np.array([2.0**-4, 2.0**-8, 2.0**-2])
    return slopes * (distance + left + block - 2)
  if kind == 'xl':
    angles = -distance * np.array([1.0, 1e-4])
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)])
    r = np.einsum('d,dnh->nh', sinusoids, params['pos_proj']['w'])
    return np.sum((query + params['v']) * r, -1)
  return 0.0


def _reference(kind, params, x, mask, block=3):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  q, k, v = (
    np.einsum('btd,dnh->btnh', x, p[name]['w']) + p[name]['b']
    for name in ('query', 'key', 'value')
  )
  q = q * _H**-0.5
  mask = np.broadcast_to(mask, (_B, 1, _T, _T))
  encoded = np.zeros_like(q)
  for b, t in np.ndindex(_B, _T):
    sees = [
      s for s in range(max(0, t - 2), min(_T, t + 2)) if mask[b, 0, t, s] == 0
    ]
    query = q[b, t] + p['u'] if kind == 'xl' else q[b, t]
    logits = np.array(
      [
        np.sum(query * k[b, s], -1) + _bias(kind, p, q[b, t], s - t, block)
        for s in sees
      ]
    )
    probs = np.exp(logits - logits.max(0))
    probs /= probs.sum(0)
    encoded[b, t] = np.einsum('sn,snh->nh', probs, v[b, sees])
  return np.einsum('btnh,dnh->btd', encoded, p['post']['w']) + p['post']['b']


@pytest.mark.parametrize(
  'kind, mask',
  [('plain', _paddings), *((kind, _segments) for kind in _KINDS)],
)
def test_blocks_equal_a_loop_over_pairs(kind, mask):
  x, mask = running.normal(_B, _T, _D), mask()
  layer, variables = running.build(_config(kind), x, x, x, mask)
  out, probs = running.run(layer, variables, x, x, x, mask)
  assert probs.shape == (_B, _N, 3, 3, 3 + 3 - 1 + 1)
  want = _reference(kind, variables['params'], np.asarray(x), np.asarray(mask))
  real = np.ones((_B, _T), bool) if mask.shape[2] > 1 else None
  if real is None:
    # The last padded query of the second example sees padding only.
    real = np.array([[True] * 7, [True] * 6 + [False]])
  np.testing.assert_allclose(out[real], want[real], atol=1e-5)


@pytest.mark.parametrize('kind, block', [('learned', 2), ('alibi', 7)])
def test_blocks_equal_the_simulated_window(kind, block):
  x, mask = running.normal(_B, _T, _D), _segments()
  config = _config(kind, block_size=block, atten_logit_cap=2.0)
  layer, variables = running.build(config, x, x, x, mask)
  simulated = config.clone().set(name='all', simulated=True).Instantiate()
  out, _ = running.run(layer, variables, x, x, x, mask)
  want, probs = running.run(simulated, variables, x, x, x, mask)
  assert probs.shape == (_B, _N, _T, _T)
  np.testing.assert_allclose(out, want, atol=1e-5)


def test_a_block_of_one_and_no_right_context():
  x, mask = running.normal(_B, _T, _D), _paddings()
  config = _config('learned', block_size=None, left_context=2, right_context=0)
  layer, variables = running.build(config, x, x, x, mask)
  simulated = config.clone().set(name='all', simulated=True).Instantiate()
  out, probs = running.run(layer, variables, x, x, x, mask)
  assert probs.shape == (_B, _N, _T, 1, 2)
  want, _ = running.run(simulated, variables, x, x, x, mask)
  np.testing.assert_allclose(out[0], want[0], atol=1e-5)
  np.testing.assert_allclose(out[1, :5], want[1, :5], atol=1e-5)


def test_gradients():
  x, mask = running.normal(1, 5, _D), jnp.zeros((1, 1, 1, 5))
  layer, variables = running.build(_config('xl'), x, x, x, mask)
  loss = jax.jit(
    lambda params: jnp.sum(
      jnp.square(layer.apply({'params': params}, x, x, x, mask)[0])
    )
  )
  check_grads(
    loss, (variables['params'],), 1, modes=['rev'], atol=2e-2, rtol=2e-2
  )


def test_bf16_and_rows_that_see_nothing():
  x = running.normal(_B, _T, _D)
  mask = jnp.where(jnp.arange(_T) < 2, -2.4e38, 0.0)[:, None]
  mask = jnp.broadcast_to(mask, (1, 1, _T, _T))
  config = _config('plain', zero_fully_masked=True, use_bias=False)
  layer, variables = running.build(config, x, x, x, mask)
  want, _ = running.run(layer, variables, x, x, x, mask)
  np.testing.assert_array_equal(want[:, :2], 0.0)
  config.fprop_dtype = jnp.bfloat16
  half = config.set(name='half').Instantiate()
  out, _ = running.run(half, variables, *[x.astype(jnp.bfloat16)] * 3, mask)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(out.astype(jnp.float32), want, atol=0.05)


@pytest.mark.parametrize(
  'kind, kwargs, message',
  [
    ('plain', {'left_context': None}, 'left_context and right_context must be'),
    ('plain', {'left_context': 5}, r'block_size \+ 1 = 4, got 5'),
    ('plain', {'left_context': 0}, 'at least 1 .*got 0'),
    ('plain', {'right_context': 4}, 'from 0 to block_size = 3, got 4'),
    (
      'plain',
      {'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias)},
      'use LocalSelfAttentionRelativeBias',
    ),
    ('xl', {'simulated': True}, 'simulated must be False'),
    ('alibi', {'simulated': True, 'left_context': None}, 'must be numbers'),
  ],
)
def test_bad_settings_are_refused(kind, kwargs, message):
  x = running.normal(1, _T, _D)
  with pytest.raises(ValueError, match=message):
    layer = _config(kind, name='local', **kwargs).Instantiate()
    layer.abstract_init_with_metadata(x, x, x, jnp.zeros((1, 1, 1, _T)))


def test_other_keys_are_refused():
  x = jnp.zeros((1, 4, _D))
  layer = _config('plain', name='local').Instantiate()
  with pytest.raises(ValueError, match=r'as many keys as queries \(3\), got 4'):
    layer.abstract_init_with_metadata(x[:, :3], x, x, jnp.zeros((1, 1, 1, 4)))


def test_blocks_are_filled_up():
  x = jnp.arange(10.0).reshape(2, 5)
  got = attentions.convert_to_block(x, 2, padding_val=-1.0)
  np.testing.assert_array_equal(
    got, [[[0, 1], [2, 3], [4, -1]], [[5, 6], [7, 8], [9, -1]]]
  )
  with pytest.raises(ValueError, match='block_size must be at least 1, got 0'):
    attentions.convert_to_block(x, 0)


@pytest.mark.parametrize('left, right', [(1, 0), (3, 2), (2, 1)])
def test_context_surrounds_each_block(left, right):
  x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
  got = attentions.extract_block_context(jnp.asarray(x), 2, left, right, -7.0)
  assert got.shape == (2, 3, 2 + left - 1 + right, 3)
  for u in range(3):
    for c in range(got.shape[2]):
      t = 2 * u - left + 1 + c
      want = x[:, t] if 0 <= t < 5 else np.full((2, 3), -7.0)
      np.testing.assert_array_equal(got[:, u, c], want)


@pytest.mark.parametrize('rows', [1, 5])
def test_masks_follow_the_context(rows):
  mask = -np.random.default_rng(0).integers(1, 9, (2, 1, rows, 5))
  mask = mask.astype(np.float32)
  got = local.extract_block_mask(jnp.asarray(mask), 2, 3, 1)
  assert got.shape == (2, 3, 1, 2, 5)
  for u, w, c in np.ndindex(3, 2, 5):
    t, s = 2 * u + w, 2 * u - 2 + c
    if 0 <= s < 5 and t < 5:
      want = mask[:, 0, t if rows > 1 else 0, s]
      np.testing.assert_array_equal(got[:, u, 0, w, c], want)
    else:
      assert np.all(got[:, u, 0, w, c] < -1e38)


@pytest.mark.parametrize('left, right', [(0, 0), (4, 0), (1, 3), (1, -1)])
def test_context_stays_in_the_neighbors(left, right):
  with pytest.raises(ValueError, match='raise block_size'):
    attentions.extract_block_context(jnp.zeros((1, 4)), 2, left, right)
