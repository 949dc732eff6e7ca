# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Dot-product attention against numpy, option by option."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, normalizations
from praxis.layers.attentions import attention_core
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D, _N, _H = 2, 5, 8, 2, 4
_SEGMENTS = jnp.array([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]])
_POSITIONS = jnp.array([[0, 1, 0, 1, 2], [0, 1, 2, 3, 0]])


def _config(**kwargs):
  fields = {'input_dim': _D, 'hidden_dim': _D, 'num_heads': _N}
  return attentions.DotProductAttention.config(**{**fields, **kwargs})


def _mask():
  return attentions.causal_segment_mask(_SEGMENTS)


def _inputs(seed=0):
  return running.normal(_B, _T, _D, seed=seed)


def _build(**kwargs):
  x = _inputs()
  return running.build(_config(**kwargs), x, x, x, _mask())


def _apply(layer, variables, x, mask=None, **kwargs):
  mask = _mask() if mask is None else mask
  pos = _POSITIONS
  return layer.apply(variables, x, x, x, mask, pos, pos, **kwargs)


def _attend(layer, *args, **kwargs):
  return running.jit(lambda *args: _apply(layer, *args, **kwargs))(*args)


def _reference(params, x, mask, o):
  """Attention as the definitions have it; `o` holds the options."""
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  x = np.asarray(x, np.float64)
  bias = lambda part, i=None: part['b'] if i is None else part['b'][i]
  heads = []
  for i, name in enumerate(['query', 'key', 'value']):
    part = p['combined_qkv'] if o.get('combine_qkv') else p[name]
    index = i if o.get('combine_qkv') else None
    w = part['w'] if index is None else part['w'][i]
    head = np.einsum('btd,dnh->btnh', x, w)
    heads.append(head + (bias(part, index) if o.get('use_bias', True) else 0))
  q, k, v = heads
  if o.get('dconv_qkv'):
    q, k, v = (
      _convolve(y, p[f'dconv_{n}'])
      for y, n in zip((q, k, v), 'qkv', strict=True)
    )
  norms_first = o.get('ln_before_rotary', False)
  of_all = o.get('ln_all_heads')
  norm = numpy_layers.norm_all_heads if of_all else numpy_layers.rms_norm
  if 'ln_tpl' in o and norms_first:
    q = norm(q, p['layer_norm_q']['scale'])
    k = norm(k, p['layer_norm_k']['scale'])
  if o.get('use_rotary_position_emb'):
    q, k = (
      numpy_layers.rotate(q, _POSITIONS),
      numpy_layers.rotate(k, _POSITIONS),
    )
  if 'ln_tpl' in o and not norms_first:
    q = norm(q, p['layer_norm_q']['scale'])
    k = norm(k, p['layer_norm_k']['scale'])
  if o.get('internal_enable_query_scale', True):
    if o.get('internal_enable_per_dim_scale', True):
      scale = p['per_dim_scale']['per_dim_scale']
      q = q * 1.442695041 / math.sqrt(_H) * np.log1p(np.exp(scale))
    else:
      q = q * o.get('query_scale', _H**-0.5)
  logits = np.einsum('btnh,bsnh->bnts', q, k)
  if 'relative_bias_tpl' in o:
    distance = np.arange(_T)[:, None] - np.arange(_T)
    logits += p['relative_bias']['wrb'][:, np.clip(distance, 0, 15)]
  if o.get('scale_logits_by_head_dims'):
    logits /= math.sqrt(_H)
  if cap := o.get('atten_logit_cap'):
    logits = cap * np.tanh(logits / cap)
  logits = np.where(np.asarray(mask) < 0, -1e30, logits)
  exps = np.exp(logits - logits.max(-1, keepdims=True))
  total = exps.sum(-1, keepdims=True)
  extra = o.get('attention_extra_logit')
  if o.get('use_attention_sinks'):
    extra = p['sinks'][:, None, None]
  if extra is not None:
    total = total + np.exp(extra - logits.max(-1, keepdims=True))
  probs = exps / total
  encoded = np.einsum('bnts,bsnh->btnh', probs, v)
  equation = (
    'btnh,nhd->btd' if o.get('output_proj_use_nhd_shape') else 'btnh,dnh->btd'
  )
  out = np.einsum(equation, encoded, p['post']['w'])
  has_bias = o.get('use_output_bias', o.get('use_bias', True))
  return out + (bias(p['post']) if has_bias else 0), probs


def _convolve(x, weights):
  out = np.zeros_like(x)
  for b, t in np.ndindex(*x.shape[:2]):
    for i in range(min(3, int(_POSITIONS[b, t]) + 1)):
      out[b, t] += x[b, t - i] * weights[f'dconv_{i}']
  return out


_OPTIONS = {
  'plain': {},
  'no_bias': {'use_bias': False},
  'combined': {'combine_qkv': True},
  'combined_no_bias': {'combine_qkv': True, 'use_bias': False},
  'plain_scale': {'internal_enable_per_dim_scale': False},
  'no_scale': {'internal_enable_query_scale': False},
  'scaled_logits': {'scale_logits_by_head_dims': True},
  'cap': {'atten_logit_cap': 1.5},
  'rotary': {'use_rotary_position_emb': True},
  'relative_bias': {
    'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias)
  },
  'extra_logit': {'attention_extra_logit': 0.5},
  'sinks': {'use_attention_sinks': True, 'atten_logit_cap': 1.5},
  'norms': {'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm)},
  'norms_before_rotary': {
    'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm),
    'ln_before_rotary': True,
    'use_rotary_position_emb': True,
  },
  'norms_of_all_heads': {
    'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm),
    'ln_all_heads': True,
  },
  'norms_of_all_heads_before_rotary': {
    'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm),
    'ln_all_heads': True,
    'ln_before_rotary': True,
    'use_rotary_position_emb': True,
  },
  'query_scale': {
    'query_scale': 0.7,
    'internal_enable_per_dim_scale': False,
  },
  'no_output_bias': {'use_output_bias': False},
  'output_bias_only': {'use_bias': False, 'use_output_bias': True},
  'dconv': {'dconv_qkv': True},
  'nhd': {'output_proj_use_nhd_shape': True},
  'all': {
    'combine_qkv': True,
    'use_bias': False,
    'dconv_qkv': True,
    'use_rotary_position_emb': True,
    'atten_logit_cap': 2.0,
    'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm),
    'attention_extra_logit': -1.0,
  },
}


# Options that others have, too.
_BY_NIGHT = [
  'no_bias', 'combined_no_bias', 'plain_scale', 'cap', 'rotary', 'extra_logit',
  'norms', 'norms_of_all_heads', 'dconv',
]  # fmt: skip


@pytest.mark.parametrize(
  'name',
  [*(x for x in _OPTIONS if x not in _BY_NIGHT), *nightly.cases(*_BY_NIGHT)],
)
def test_attention(name):
  options = _OPTIONS[name]
  layer, variables = _build(**options)
  x = _inputs()
  encoded, probs = _attend(layer, variables, x)
  want, want_probs = _reference(variables['params'], x, _mask(), options)
  np.testing.assert_allclose(probs, want_probs, atol=2e-6)
  np.testing.assert_allclose(encoded, want, atol=1e-5)


def test_logits_are_summarized_before_the_cap():
  layer, variables = _build(
    atten_logit_cap=1e-3, internal_enable_query_scale=False
  )
  context = base_layer.JaxContext.HParams(do_eval=True, summary_verbosity=4)
  x = _inputs()
  with base_layer.JaxContext.new_context(hparams=context):
    _, updated = layer.apply(
      variables, x, x, x, _mask(), mutable=[base_layer.SUMMARIES]
    )
  q, k = (
    np.einsum('btd,dnh->btnh', x, variables['params'][name]['w'])
    + variables['params'][name]['b']
    for name in ('query', 'key')
  )
  logits = np.einsum('btnh,bsnh->bnts', q, k)
  visible = np.broadcast_to(np.asarray(_mask()) > -1, logits.shape)
  summaries = updated[base_layer.SUMMARIES]
  np.testing.assert_allclose(
    summaries['max_logit_precap_scalar'], logits[visible].max(), rtol=1e-5
  )
  np.testing.assert_allclose(
    summaries['rms_logits_precap_scalar'],
    np.sqrt(np.mean(logits**2)),
    rtol=1e-5,
  )


def test_variables():
  _, variables = _build(dconv_qkv=True, relative_bias_tpl=_bias())
  heads, wide = (_N, _H), (_D, _N, _H)
  want = {'per_dim_scale/per_dim_scale': (_H,), 'relative_bias/wrb': (_N, 32)}
  for name in ('query', 'key', 'value'):
    want |= {f'{name}/w': wide, f'{name}/b': heads}
    want |= {f'dconv_{name[0]}/dconv_{i}': heads for i in range(3)}
  assert running.shapes(variables) == want | {'post/w': wide, 'post/b': (_D,)}


def _bias():
  return pax_fiddle.Config(attentions.RelativeBias)


def test_shardings_reach_the_weights():
  config = _config(combine_qkv=True, name='layer')
  config.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  x = _inputs()
  declared = config.Instantiate().abstract_init_with_metadata(x, x, x, _mask())
  params = declared['params']
  weight = params['combined_qkv']['w'].tensor_split_dims_mapping
  assert list(weight) == [None, 'data', 'mdl', None]
  post = params['post']['w'].tensor_split_dims_mapping
  assert list(post) == ['data', 'mdl', None]


def test_sinks_are_float32_and_sharded_as_heads():
  config = _config(
    use_attention_sinks=True, name='layer', fprop_dtype=jnp.bfloat16
  )
  config.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  config.mesh_axis_names, config.ici_mesh_shape = ['data', 'mdl'], [1, 1]
  x = _inputs()
  layer = config.Instantiate()
  declared = layer.abstract_init_with_metadata(x, x, x, _mask())
  sinks = declared['params']['sinks']
  assert list(sinks.shape) == [_N]
  assert list(sinks.tensor_split_dims_mapping) == ['mdl']
  # 1 + 2**-9 is 1 in bfloat16.
  read = lambda layer: layer._extra_logit()
  stored = {'params': {'sinks': jnp.full((_N,), 1 + 2**-9)}}
  got = layer.apply(stored, method=read)
  np.testing.assert_array_equal(got, 1 + 2**-9)


def test_gaussian_initialization_of_gshard():
  config = _config(internal_gshard_gaussian_init=True, name='layer')
  x = _inputs()
  declared = config.Instantiate().abstract_init_with_metadata(x, x, x, _mask())
  params, gaussian = declared['params'], base_layer.WeightInit.Gaussian
  assert params['query']['w'].init == gaussian((_D * _H) ** -0.5)
  assert params['key']['w'].init == gaussian(_D**-0.5)
  assert params['value']['w'].init == gaussian(_D**-0.5)
  assert params['post']['w'].init == gaussian((_N * _H) ** -0.5)


@pytest.mark.parametrize('sinks', [False, True])
def test_gradients(sinks):
  layer, variables = _build(
    atten_logit_cap=5.0,
    use_rotary_position_emb=True,
    use_attention_sinks=sinks,
  )
  x = _inputs()

  def loss(params, x):
    encoded, _ = layer.apply(
      {'params': params}, x, x, x, _mask(), _POSITIONS, _POSITIONS
    )
    return jnp.sum(jnp.sin(encoded))

  check_grads(
    jax.jit(loss),
    (variables['params'], x),
    order=1,
    modes=['rev'],
    rtol=2e-2,
  )


def test_nothing_leaks_from_hidden_positions():
  layer, variables = _build()
  x, mask = _inputs(), _mask()

  def first_segment(x):
    return _apply(layer, variables, x, mask)[0][0, :2].sum()

  gradient = running.jit(jax.grad(first_segment))(x)
  assert np.all(np.asarray(gradient[0, :2]) != 0)
  np.testing.assert_array_equal(gradient[0, 2:], 0)
  np.testing.assert_array_equal(gradient[1], 0)


@pytest.mark.parametrize('zero', [False, True])
def test_queries_that_see_nothing(zero):
  layer, variables = _build(zero_fully_masked=zero, use_bias=False)
  x = _inputs()
  mask = attentions.convert_paddings_to_mask(jnp.ones((_B, _T)))
  encoded, probs = _attend(layer, variables, x, mask)
  np.testing.assert_allclose(probs, 0 if zero else 1 / _T, atol=1e-7)
  assert np.all(np.asarray(encoded) == 0) == zero


def test_bfloat16_keeps_the_softmax_in_float32():
  layer, variables = _build(fprop_dtype=jnp.bfloat16)
  x = _inputs()
  encoded, probs = _attend(layer, variables, x.astype(jnp.bfloat16))
  assert encoded.dtype == probs.dtype == jnp.bfloat16
  want, want_probs = _reference(variables['params'], x, _mask(), {})
  np.testing.assert_allclose(probs.astype(np.float32), want_probs, atol=2e-2)
  np.testing.assert_allclose(encoded.astype(np.float32), want, atol=8e-2)
  jaxpr = str(jax.make_jaxpr(lambda x: _apply(layer, variables, x))(x))
  assert f'exp2:f32[{_B},{_N},{_T},{_T}]' in jaxpr or (
    f'f32[{_B},{_N},{_T},{_T}] = exp' in jaxpr
  )


def test_dropout_drops_probabilities_in_training_only():
  layer, variables = _build(atten_dropout_prob=0.5)
  x, mask = _inputs(), _mask()
  rngs = {'random': jax.random.key(3)}
  dropped, probs = _attend(layer, variables, x, mask, rngs=rngs)
  kept = running.run(layer, variables, x, x, x, mask, do_eval=True)[0]
  assert np.max(np.abs(dropped - kept)) > 1e-2
  np.testing.assert_allclose(np.sum(probs, -1), 1.0, atol=1e-5)


def test_inputs_of_different_sizes_and_lengths():
  sizes = {'query': 6, 'key': 4, 'value': 3}
  config = _config(input_dim=sizes)
  q, k, v = (
    running.normal(_B, 3 if name == 'query' else 4, size, seed=size)
    for name, size in sizes.items()
  )
  mask = jnp.zeros((1, 1, 1, 4))
  layer, variables = running.build(config, q, k, v, mask)
  encoded, probs = running.run(layer, variables, q, k, v, mask)
  assert encoded.shape == (_B, 3, 6) and probs.shape == (_B, _N, 3, 4)
  assert variables['params']['value']['w'].shape == (3, _N, _H)


def test_mask_summary():
  layer, variables = _build(attention_mask_summary=True)
  x = _inputs()
  _, updates = layer.apply(variables, x, x, x, _mask(), mutable=['summaries'])
  (image,) = updates['summaries'].values()
  assert image.shape == (_B, _T, _T, 1)


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'num_heads': 3}, 'multiple of num_heads=3, got 8'),
    ({'hidden_dim': 0}, 'must be positive'),
    ({'input_dim': {'query': 8}}, "for each of .*, got {'query': 8}"),
    ({'input_dim': 0}, 'input_dim must be positive'),
    (
      {'combine_qkv': True, 'input_dim': {'query': 8, 'key': 8, 'value': 8}},
      'must be one number',
    ),
    ({'consolidate_rope_key_state': True}, 'set it to False'),
    (
      {'use_attention_sinks': True, 'attention_extra_logit': 0.0},
      'the sinks replace it',
    ),
  ],
)
def test_impossible_configurations_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    _build(**kwargs)


def test_dim_per_head_frees_the_head_from_the_model():
  _, variables = _build(dim_per_head=7, num_heads=3)
  assert variables['params']['query']['w'].shape == (_D, 3, 7)


def test_inputs_that_do_not_fit_are_refused():
  x = jnp.zeros((_B, _T, _D))
  sizes = (_D,) * 3
  mask = lambda *dims: attention_core.check_mask(
    jnp.zeros(dims), batch=_B, num_heads=_N, num_queries=_T, num_keys=_T
  )
  mask(_B, 1, _T, _T)
  mask(1, _N, 1, _T)
  for dims in [(_T, _T), (1, 1, _T, _T - 1), (1, 3, _T, _T), (3, 1, _T, _T)]:
    with pytest.raises(ValueError, match='atten_mask must have shape'):
      mask(*dims)
  flat, wide = jnp.zeros((_B, _D)), jnp.zeros((_B, _T, _D + 1))
  for other in (flat, wide):
    with pytest.raises(ValueError, match=r'key_vec must have shape \[batch, '):
      attention_core.check_inputs((x, other, x), sizes)
  with pytest.raises(ValueError, match='pass one value for each key'):
    attention_core.check_inputs((x, x, x[:, :3]), sizes)


@pytest.mark.parametrize(
  'method, args',
  [
    ('init_states', (2, 4)),
    ('lazy_broadcast_prefix', (2, 4)),
    ('right_align_decode_state_with_prefix', (4, lambda x, *_: x)),
  ],
)
def test_what_other_classes_do_is_not_done(method, args):
  layer = _config().set(name='atten').Instantiate()
  with pytest.raises(
    NotImplementedError, match=f'DotProductAttention.{method}'
  ):
    layer.apply({}, *args, method=method)


class _Ngrams(base_layer.BaseLayer):
  """Adds the heads of the step before, weighted by what they attended to."""

  ngram_using_attention_scores: bool = False

  def __call__(
    self, input_ids, input_embs, segment_pos, merge_heads, attention_scores
  ):
    assert input_ids is None and not merge_heads
    weights = 1.0
    if self.ngram_using_attention_scores:
      weights = attention_scores[..., 0].swapaxes(1, 2)[..., None]
    return input_embs + weights * attentions.shift_1d(input_embs, 1, 1)

  def extend_step(self, input_embs, step, merge_heads, attention_score):
    weights = 1.0
    if self.ngram_using_attention_scores:
      weights = attention_score[..., 0][..., None]
    before = jnp.where(step > 0, input_embs[:, step - 1], 0.0)
    return input_embs[:, step] + weights * before


@pytest.mark.parametrize('scores', [False, True])
def test_ngrams_are_added_to_what_heads_attended_to(scores):
  config = pax_fiddle.Config(_Ngrams, ngram_using_attention_scores=scores)
  x = _inputs()
  mask = attentions.causal_mask(x)
  layer, variables = _build(ngrammer_tpl=config)
  states = [base_layer.DECODE_CACHE]

  @running.jit
  def results(variables):
    (out, probs), cache = layer.apply(variables, x, x, x, mask, mutable=states)
    step, _ = layer.apply(
      {**variables, **cache},
      x[:, 3],
      atten_mask=mask[:, :, 3],
      time_step=3,
      segment_pos=None,
      method='extend_step',
      mutable=states,
    )
    return (
      out,
      probs,
      cache[base_layer.DECODE_CACHE]['encoded_pre_ngrammer'],
      step,
    )

  out, probs, heads, step = results(variables)
  earlier = np.pad(heads, [(0, 0), (1, 0), (0, 0), (0, 0)])[:, :-1]
  weights = np.moveaxis(probs[..., :1], 1, 2) if scores else 1.0
  post = variables['params']['post']
  want = np.einsum('btnh,dnh->btd', heads + weights * earlier, post['w'])
  np.testing.assert_allclose(out, want + post['b'], atol=1e-5)
  np.testing.assert_allclose(step, out[:, 3], atol=1e-5)
