# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Relative positions of Transformer-XL against a loop over pairs."""

from __future__ import annotations

import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import attentions
from tests.praxis.layers import running

_B, _D, _N, _H, _R = 2, 6, 2, 3, 8


def _config(**kwargs):
  fields = {
    'input_dim': _D,
    'hidden_dim': _D,
    'num_heads': _N,
    'rel_pos_emb_dim': _R,
    'internal_enable_per_dim_scale': False,
  }
  return pax_fiddle.Config(
    attentions.DotProductAttentionXL, **{**fields, **kwargs}
  )


def _sinusoid(distance):
  angles = distance * np.exp(-np.log(10_000) / 3 * np.arange(4))
  return np.concatenate([np.sin(angles), np.cos(angles)])


@pytest.mark.parametrize('length', [1, 4])
def test_logits_depend_on_content_and_distance(length):
  x = running.normal(_B, length, _D)
  mask = attentions.causal_mask(x)
  layer, variables = running.build(_config(), x, x, x, mask)
  p = variables['params']
  assert running.shapes(
    {'params': {k: p[k] for k in ('u', 'v', 'pos_proj')}}
  ) == {
    'u': (_N, _H),
    'v': (_N, _H),
    'pos_proj/w': (_R, _N, _H),
  }
  q, k = (
    np.einsum('btd,dnh->btnh', x, p[name]['w']) + p[name]['b']
    for name in ('query', 'key')
  )
  q = q * _H**-0.5
  logits = np.full((_B, _N, length, length), -1e30)
  for t in range(length):
    for s in range(t + 1):
      r = np.einsum('d,dnh->nh', _sinusoid(t - s), p['pos_proj']['w'])
      logits[:, :, t, s] = np.sum(
        (q[:, t] + p['u']) * k[:, s] + (q[:, t] + p['v']) * r, -1
      )
  exps = np.exp(logits - logits.max(-1, keepdims=True))
  _, probs = running.run(layer, variables, x, x, x, mask)
  np.testing.assert_allclose(
    probs, exps / exps.sum(-1, keepdims=True), atol=1e-5
  )


def test_what_it_cannot_do_is_said():
  x = running.normal(_B, 4, _D)
  mask = attentions.causal_mask(x)
  with pytest.raises(ValueError, match='rel_pos_emb_dim must be positive'):
    running.build(_config(rel_pos_emb_dim=0), x, x, x, mask)


def test_shifts_come_with_biases():
  x = running.normal(_B, 4, _D)
  args = (x, x, x, attentions.causal_mask(x))
  layer = _config(name='xl', use_bias=False).Instantiate()
  params = layer.abstract_init_with_metadata(*args)['params']
  assert set(params['pos_proj']) == {'w'}
  assert not {'u', 'v'} & set(params)
