# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Conformers against numpy and against the sum of their blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, conformers, convolutions, transformers
from tests.praxis.layers import running
from tests.testing import numpy_layers

_B, _T, _D, _N, _H = 2, 6, 4, 2, 2
_HIDDEN = -2.3e38
_PAD = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], np.float32)


def _x():
  return running.normal(_B, _T, _D)


def _attention(cls=conformers.DotProductAttentionWithContext, **kwargs):
  return cls.config(
    input_dim=_D, hidden_dim=_D, num_heads=_N, internal_enable_query_scale=False
  ).set(**kwargs)


def _attention_by_hand(params, x, visible):
  """Attention of `x` to itself where `visible` [B, T, T] holds."""
  project = lambda n: (
    np.einsum('btd,dnh->btnh', x, params[n]['w']) + params[n]['b']
  )
  query, key, value = map(project, ('query', 'key', 'value'))
  logits = np.einsum('btnh,bsnh->bnts', query, key)
  probs = numpy_layers.softmax(np.where(visible[:, None], logits, -1e30))
  out = np.einsum('bnts,bsnh->btnh', probs, value)
  return (
    np.einsum('btnh,dnh->btd', out, params['post']['w']) + (params['post']['b'])
  )


def _numpy(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def _in_context(left, right):
  t, s = np.arange(_T)[:, None], np.arange(_T)
  seen = np.ones((_T, _T), bool)
  if left is not None:
    seen &= s > t - left
  if right is not None:
    seen &= s <= t + right
  return seen


@pytest.mark.parametrize('left, right', [(2, 1), (None, 0), (3, None)])
def test_context_limits_attention(left, right):
  config = _attention(left_context=left, right_context=right)
  args = (_x(), _x(), _x(), jnp.zeros([1, 1, _T, _T]))
  layer, variables = running.build(config, *args)
  got, probs = running.run(layer, variables, *args)
  seen = _in_context(left, right)
  want = _attention_by_hand(
    _numpy(variables['params']), np.asarray(_x()), np.stack([seen] * _B)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)
  assert (np.asarray(probs)[:, :, ~seen] == 0).all()


def test_context_limits_decoding():
  config = _attention(left_context=2, right_context=1)
  mask = attentions.causal_mask(_x())
  args = (_x(), _x(), _x(), mask)
  layer, variables = running.build(config, *args)
  cache_only = [base_layer.DECODE_CACHE]
  (got, _), cache = running.run(layer, variables, *args, mutable=cache_only)
  seen = _in_context(2, 0)
  want = _attention_by_hand(
    _numpy(variables['params']), np.asarray(_x()), np.stack([seen] * _B)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)
  step, _ = running.run(
    layer,
    {**variables, **cache},
    _x()[:, -1],
    atten_mask=mask[:, :, -1],
    time_step=jnp.int32(_T - 1),
    segment_pos=None,
    method='extend_step',
    mutable=cache_only,
  )
  np.testing.assert_allclose(step, want[:, -1], atol=1e-5)


def test_context_of_the_xl_variant():
  wide = conformers.DotProductAttentionWithContextXL
  limited = _attention(wide, rel_pos_emb_dim=_D, left_context=2)
  limited.right_context = 1
  mask = jnp.zeros([1, 1, _T, _T])
  layer, variables = running.build(limited, _x(), _x(), _x(), mask)
  got, _ = running.run(layer, variables, _x(), _x(), _x(), mask)
  plain = _attention(attentions.DotProductAttentionXL, rel_pos_emb_dim=_D)
  hidden = jnp.where(_in_context(2, 1), 0.0, _HIDDEN)[None, None]
  want, _ = running.run(
    plain.Instantiate(), variables, _x(), _x(), _x(), hidden
  )
  np.testing.assert_allclose(got, want, atol=1e-5)


_POLICIES = {
  'pre': {'pre_layer_norm': True},
  'post_skip': {'pre_layer_norm': False},
  'post': {'pre_layer_norm': None, 'norm_policy': 'post'},
  'primer_hybrid': {'pre_layer_norm': None, 'norm_policy': 'primer_hybrid'},
}


def _self_attention(**kwargs):
  config = conformers.SelfAttentionWithNormAndResidual.config(**kwargs)
  config.self_atten_tpl = _attention()
  config.norm_tpl.dim = _D
  return config


def _self_attention_by_hand(params, x, policy, seen):
  before = {'pre': 'norm', 'primer_hybrid': 'pre_norm'}.get(policy)
  after = {'post': 'norm', 'primer_hybrid': 'post_norm'}.get(policy)
  y = numpy_layers.layer_norm(x, params[before]) if before else x
  y = _attention_by_hand(params['self_atten'], y, seen)
  y = numpy_layers.layer_norm(y, params[after]) if after else y
  y = 0.7 * y + 1.3 * x
  return (
    numpy_layers.layer_norm(y, params['norm']) if policy == 'post_skip' else y
  )


@pytest.mark.parametrize('policy', _POLICIES)
def test_self_attention_equals_numpy(policy):
  config = _self_attention(
    residual_weight=0.7, input_weight=1.3, **_POLICIES[policy]
  )
  hidden = np.arange(_T) == 2
  mask = jnp.where(hidden, _HIDDEN, 0.0)[None, None, None]
  layer, variables = running.build(config, _x(), jnp.asarray(_PAD), mask)

  @running.jit
  def gradient(x):
    def loss(x):
      out = layer.apply(variables, x, jnp.asarray(_PAD), mask)
      return jnp.sum(jnp.sin(out)), out

    return jax.grad(loss, has_aux=True)(x)

  found, got = gradient(_x())
  params = _numpy(variables['params'])
  seen = np.stack([_PAD == 0] * _T, axis=1) & ~hidden
  direction = np.random.default_rng(1).normal(size=(_B, _T, _D))
  by_hand = lambda step: _self_attention_by_hand(
    params, np.asarray(_x(), np.float64) + step * direction, policy, seen
  )
  np.testing.assert_allclose(got, by_hand(0), atol=1e-4)
  high, low = np.sin(by_hand(1e-5)).sum(), np.sin(by_hand(-1e-5)).sum()
  along = np.sum(found * direction)
  np.testing.assert_allclose(along, (high - low) / 2e-5, rtol=2e-3)


def test_padding_sees_nothing_in_a_window():
  config = _self_attention()
  config.self_atten_tpl.left_context = 2
  layer, variables = running.build(config, _x(), jnp.asarray(_PAD))
  other = _x().at[1, :4].add(running.normal(4, _D, seed=3))
  got, moved = (
    running.run(layer, variables, x, jnp.asarray(_PAD)) for x in (_x(), other)
  )
  # A row that sees nothing has the mean of all values.
  mean = lambda out, x: np.asarray(out - x)[1, 4]
  assert np.allclose(mean(got, _x()), np.asarray(got - _x())[1, 5], atol=1e-5)
  assert not np.allclose(mean(moved, other), mean(got, _x()))


def _config(**kwargs):
  return conformers.Conformer.config(
    input_dims=_D,
    model_dims=_D,
    kernel_size=3,
    ffn_dim_multiplier=2,
    atten_num_heads=_N,
  ).set(**kwargs)


_BLOCKS = {
  'fflayer_start': transformers.TransformerFeedForward,
  'trans_atten': conformers.SelfAttentionWithNormAndResidual,
  'lconv': convolutions.LightConv1D,
  'fflayer_end': transformers.TransformerFeedForward,
}
_ORDERS = {
  'mhsa': ['trans_atten'],
  'conv': ['lconv'],
  'mhsa_before_conv': ['trans_atten', 'lconv'],
  'conv_before_mhsa': ['lconv', 'trans_atten'],
}


def _block(name, config):
  """One block, with the conformer's settings by hand."""
  if name == 'lconv':
    block = config.lconv_tpl.clone().set(input_dims=_D, kernel_size=3)
  elif name == 'trans_atten':
    block = config.trans_atten_tpl.clone()
    block.norm_tpl.dim = _D
    block.self_atten_tpl.set(input_dim=_D, hidden_dim=_D, num_heads=_N)
  else:
    block = getattr(config, f'{name}_tpl').clone()
    block.set(
      input_dims=_D,
      hidden_dims=2 * _D,
      residual_weight=0.5,
      activation_tpl=config.ff_activation_tpl.clone(),
    )
  assert block.cls is _BLOCKS[name]
  return block.Instantiate()


@pytest.mark.parametrize('order', _ORDERS)
def test_conformer_is_its_blocks_in_order(order):
  config = _config(layer_order=order, fflayer_weight_sharing=order == 'mhsa')
  layer, variables = running.build(config, _x(), jnp.asarray(_PAD))
  last = 'fflayer_start' if order == 'mhsa' else 'fflayer_end'
  assert set(variables['params']) == {
    'fflayer_start',
    last,
    'final_ln',
    *_ORDERS[order],
  }
  blocks = ('fflayer_start', *_ORDERS[order], last)

  @running.jit
  def both(x, padding):
    y = x
    for name in blocks:
      trees = {k: tree[name] for k, tree in variables.items() if name in tree}
      y = _block(name, config).apply(trees, y, padding)
    return layer.apply(variables, x, padding), y

  context = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=context):
    got, y = both(_x(), jnp.asarray(_PAD))
  want = numpy_layers.layer_norm(
    np.asarray(y), _numpy(variables['params']['final_ln'])
  )
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_other_input_size_and_no_ends():
  config = _config(
    input_dims=3, layer_order='conv', fflayer_end_tpl=None, final_ln_tpl=None
  )
  config.fflayer_start_tpl.add_skip_connection = False
  x = running.normal(_B, _T, 3)
  layer, variables = running.build(config, x, jnp.asarray(_PAD))
  assert set(variables['params']) == {'fflayer_start', 'lconv'}
  got = running.run(layer, variables, x, jnp.asarray(_PAD), do_eval=True)
  assert got.shape == (_B, _T, _D)


def test_dropouts_reach_their_blocks():
  one = _config(dropout_prob=0.25).Instantiate()
  own = _config(
    conv_residual_dropout=0.25,
    atten_residual_dropout=0.25,
    ffn_residual_dropout=0.25,
    atten_dropout=0.25,
    ffn_relu_dropout=0.25,
  ).Instantiate()
  for layer in (one, own):
    bound = layer.bind({})
    kept = [
      bound.lconv.dropout_prob,
      bound.trans_atten.residual_dropout_prob,
      bound.trans_atten.self_atten_tpl.atten_dropout_prob,
      bound.fflayer_start.residual_dropout_prob,
      bound.fflayer_end.relu_dropout_prob,
    ]
    assert kept == [0.25] * 5


def test_bfloat16():
  config = _config(fprop_dtype=jnp.bfloat16, layer_order='mhsa')
  x = _x().astype(jnp.bfloat16)
  layer, variables = running.build(config, x, jnp.asarray(_PAD))
  got = running.run(layer, variables, x, jnp.asarray(_PAD))
  assert got.dtype == jnp.bfloat16
  exact = config.clone().set(fprop_dtype=jnp.float32, name='layer')
  want = running.run(
    exact.Instantiate(), variables, x.astype(jnp.float32), jnp.asarray(_PAD)
  )
  np.testing.assert_allclose(got.astype(np.float32), want, atol=0.1)


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'layer_order': 'conv_mhsa'}, 'layer_order of mhsa, conv'),
    ({'lconv_tpl': None}, 'no lconv_tpl'),
    (
      {'fflayer_weight_sharing': True, 'fflayer_start_tpl': None},
      'set fflayer_start_tpl',
    ),
    (
      {'dropout_prob': 0.1, 'atten_dropout': 0.2},
      'atten_dropout of Conformer .* absent or dropout_prob=0.1, got 0.2',
    ),
    (
      {
        'trans_atten_tpl': pax_fiddle.Config(
          conformers.SelfAttentionWithNormAndResidual, norm_policy='pre'
        )
      },
      'and not both',
    ),
  ],
)
def test_bad_settings(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**kwargs), _x(), jnp.asarray(_PAD))


def test_masks_without_attention_are_refused():
  mask = jnp.zeros([1, 1, _T, _T])
  with pytest.raises(ValueError, match="layer_order='conv', which has no"):
    config = _config(layer_order='conv')
    running.build(config, _x(), jnp.asarray(_PAD), mask)
