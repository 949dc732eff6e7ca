# bazel: size=medium
# SPDX-License-Identifier: Apache-2.0
"""Adapted layers equal plain ones whose weights are the sums."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  linears,
  low_rank_adaptation,
  multi_query_attention,
  transformers,
)
from tests.praxis.layers import running
from tests.testing import nightly

_D, _N, _H, _R = 4, 2, 3, 2
_ALPHA = 5.0
_FACTORS = low_rank_adaptation.FACTORS
_HEADS = {'input_dim': _D, 'num_heads': _N, 'dim_per_head': _H}
_X = running.normal(2, 5, _D)
_Y = running.normal(2, 5, _N, _H)
_MOE = {
  'input_dims': _D,
  'hidden_dims': 6,
  'num_experts': 3,
  'num_groups': 1,
  'gating_func': 'dropless',
  'use_gated_activation': True,
}

# Plain layer, fields, input, and A B^T in the layout of the weight by numpy.
_CASES = {
  'linear': (
    linears.Linear,
    {'input_dims': _D, 'output_dims': 6},
    _X,
    lambda product: product,
  ),
  'to one head': (
    multi_query_attention.OneHeadedAttentionProjection,
    {'input_dim': _D, 'output_dim': _H},
    _X,
    lambda product: product,
  ),
  'to heads': (
    attentions.AttentionProjection,
    _HEADS,
    _X,
    lambda product: product.reshape(_D, _N, _H),
  ),
  'from heads': (
    attentions.AttentionProjection,
    {**_HEADS, 'is_output_projection': True},
    _Y,
    lambda product: product.T.reshape(_D, _N, _H),
  ),
  'from one head': (
    attentions.AttentionProjection,
    {**_HEADS, 'num_heads': 1, 'is_output_projection': True},
    _Y[:, :, :1],
    lambda product: product.T.reshape(_D, 1, _H),
  ),
  'from heads, NHD': (
    attentions.AttentionProjection,
    {**_HEADS, 'is_output_projection': True, 'use_nhd_shape': True},
    _Y,
    lambda product: product.reshape(_N, _H, _D),
  ),
  'combined dims': (
    attentions.AttentionProjection,
    {**_HEADS, 'attention_combine_dims': True, 'use_bias': False},
    _X,
    lambda product: product,
  ),
  'from combined dims': (
    attentions.AttentionProjection,
    {
      **_HEADS,
      'is_output_projection': True,
      'attention_combine_dims': True,
      'use_bias': False,
    },
    _Y,
    lambda product: product.T,
  ),
  'queries, keys, values': (
    attentions.CombinedQKVProjectionLayer,
    _HEADS,
    _X,
    lambda product: product.reshape(3, _D, _N, _H),
  ),
  'experts': (
    transformers.TransformerFeedForwardMoe,
    _MOE,
    _X,
    lambda product: product,
  ),
  'experts with a capacity': (
    transformers.TransformerFeedForwardMoe,
    {
      **_MOE,
      'gating_func': 'top2',
      'use_gated_activation': False,
      'expert_weight_shards': 2,
    },
    _X,
    lambda product: product,
  ),
}


def _adapted(cls, fields, **updates):
  layer_p = cls.config(**fields)
  low_rank_adaptation.add_updates(
    layer_p, lora_rank=_R, lora_alpha=_ALPHA, **updates
  )
  return layer_p


def _split(params):
  """Returns the plain variables, and (A, B) by the name of their weight."""
  plain, factors = dict(params), {}
  for name in params:
    if not name.endswith('lora_a'):
      continue
    weight = name.removesuffix('lora_a').removesuffix('_') or 'w'
    factors[weight] = plain.pop(name), plain.pop(name[:-1] + 'b')
    plain.pop(f'{name[:-1]}magnitude_delta', None)
  return plain, factors


def _loss(layer, inputs, variables):
  """Returns a number that all outputs change, and the outputs."""
  out = layer.apply(variables, inputs)
  return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out)), out


_BY_NIGHT = ['from one head', 'combined dims', 'from combined dims']


@pytest.mark.parametrize(
  'name',
  [*(x for x in _CASES if x not in _BY_NIGHT), *nightly.cases(*_BY_NIGHT)],
)
def test_output_and_gradient_are_those_of_the_sum(name):
  cls, fields, inputs, to_layout = _CASES[name]
  layer, variables = running.build(_adapted(cls, fields), inputs)
  variables['non_trainable']['lora_scale'] = jnp.float32(_ALPHA / _R)
  plain, factors = _split(variables['params'])

  def product(a, b):
    return (
      _ALPHA / _R * to_layout(np.asarray(a) @ np.asarray(b).swapaxes(-1, -2))
    )

  total = plain | {w: plain[w] + product(*ab) for w, ab in factors.items()}
  other = cls.config(**fields).Instantiate()

  @running.jit
  def both(params, total):
    of_factors = jax.grad(
      lambda params: _loss(layer, inputs, {**variables, 'params': params}),
      has_aux=True,
    )
    of_sum = jax.grad(
      lambda params: _loss(other, inputs, {'params': params}), has_aux=True
    )
    return of_factors(params), of_sum(total)

  (gradient, got), (plain_gradient, want) = both(variables['params'], total)
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5)
  assert factors
  _, found = _split(gradient)
  for weight, (a, b) in factors.items():
    # The chain rule: along a direction of A, the weight moves by it times B^T.
    for at, moved in ((0, lambda d, b=b: (d, b)), (1, lambda d, a=a: (a, d))):
      direction = np.random.default_rng(1).normal(size=found[weight][at].shape)
      along = np.sum(plain_gradient[weight] * product(*moved(direction)))
      np.testing.assert_allclose(
        np.sum(found[weight][at] * direction), along, rtol=1e-3, atol=1e-4
      )


def _norms(cls, fields, value):
  """Returns the norms over the inputs of a weight, in its layout."""
  axes = {
    attentions.AttentionProjection: (0,),
    attentions.CombinedQKVProjectionLayer: (1,),
  }.get(cls, (-2,))
  if fields.get('is_output_projection'):
    is_nhd = fields.get('use_nhd_shape')
    axes = (0, 1) if is_nhd else tuple(range(1, value.ndim))
  return np.sqrt(np.sum(np.square(value), axis=axes, keepdims=True))


@pytest.mark.parametrize(
  'name',
  nightly.except_for(
    [
      *('linear', 'to one head', 'to heads', 'from heads, NHD'),
      *('queries, keys, values', 'experts'),
    ],
    [x for x in _CASES if x != 'experts with a capacity'],
  ),
)
def test_dora_is_the_weight_with_other_norms(name):
  cls, fields, inputs, to_layout = _CASES[name]
  layer, variables = running.build(_adapted(cls, fields, use_dora=True), inputs)
  variables['non_trainable']['lora_scale'] = jnp.float32(_ALPHA / _R)
  params = variables['params']
  plain, factors = _split(params)
  assert factors
  other = cls.config(**fields).Instantiate()

  def directions(w, a, b):
    """Returns the weights with norm 1, as the paper has them."""
    update = to_layout(np.asarray(a) @ np.asarray(b).swapaxes(-1, -2))
    total = np.asarray(plain[w]) + _ALPHA / _R * update
    return total / _norms(cls, fields, total)

  def magnitudes(w, delta):
    norm = _norms(cls, fields, np.asarray(plain[w]))
    return norm + delta.reshape(norm.shape)

  def delta_name(w):
    return 'lora_magnitude_delta' if w == 'w' else f'{w}_lora_magnitude_delta'

  units = {w: directions(w, *ab) for w, ab in factors.items()}
  deltas = {w: params[delta_name(w)] for w in factors}

  @running.jit
  def both(params, deltas):
    of_params = jax.grad(
      lambda params: _loss(layer, inputs, {**variables, 'params': params}),
      has_aux=True,
    )
    of_deltas = jax.grad(
      lambda deltas: _loss(
        other,
        inputs,
        {
          'params': plain
          | {w: magnitudes(w, deltas[w]) * u for w, u in units.items()}
        },
      ),
      has_aux=True,
    )
    return of_params(params), of_deltas(deltas)

  (gradient, got), (of_deltas, want) = both(params, deltas)
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(x, y, atol=5e-5)
  for w, value in of_deltas.items():
    np.testing.assert_allclose(
      gradient[delta_name(w)], value, rtol=1e-3, atol=1e-4
    )


def test_no_gradient_of_dora_flows_through_the_norm():
  layer_p = _adapted(
    linears.Linear, {'input_dims': _D, 'output_dims': 6}, use_dora=True
  )
  layer, variables = running.build(layer_p, _X)
  params = variables['params']
  scale = float(variables['non_trainable']['lora_scale'])
  w, a, b = (np.asarray(params[x]) for x in ('w', 'lora_a', 'lora_b'))
  total = w + scale * a @ b.T
  gain = (
    np.linalg.norm(w, axis=0) + params['lora_magnitude_delta']
  ) / np.linalg.norm(total, axis=0)
  gradient = jax.jit(
    jax.grad(
      lambda params: jnp.sum(layer.apply({**variables, 'params': params}, _X))
    )
  )(params)
  x = _X.reshape(-1, _D).sum(axis=0)
  # Of sum(gain * (x W + s x A B^T)), with gain as a constant.
  np.testing.assert_allclose(
    gradient['lora_b'], scale * np.outer(gain, x @ a), rtol=1e-4
  )
  np.testing.assert_allclose(
    gradient['lora_a'], scale * np.outer(x, gain @ b), rtol=1e-4
  )


def test_dora_starts_as_the_plain_layer():
  layer_p = _adapted(
    linears.Linear, {'input_dims': 64, 'output_dims': 6}, use_dora=True
  )
  layer = layer_p.set(name='layer').Instantiate()
  x = running.normal(2, 64)
  variables = running.jit(layer.init)(jax.random.key(0), x)
  params = variables['params']
  assert not params['lora_magnitude_delta'].any()
  np.testing.assert_array_equal(layer.apply(variables, x), x @ params['w'])
  # An output without weights stays zero, and has finite gradients.
  params['w'] = params['w'].at[:, 2].set(0.0)
  loss = lambda v: jnp.sum(layer.apply(v, x))
  gradient = running.jit(jax.grad(loss))(variables)['params']
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
  assert not running.run(layer, variables, x)[:, 2].any()


def test_dora_of_experts_needs_whole_weights():
  layer_p = _adapted(
    transformers.TransformerFeedForwardMoe,
    {**_MOE, 'expert_weight_shards': 2},
    use_dora=True,
  )
  with pytest.raises(ValueError, match='must have expert_weight_shards=1'):
    running.build(layer_p, _X)


def test_starts_as_the_plain_layer():
  layer_p = _adapted(linears.Linear, {'input_dims': 64, 'output_dims': 6})
  x = running.normal(2, 64)
  layer = layer_p.set(dtype=jnp.bfloat16, fprop_dtype=jnp.float32).Instantiate()
  variables = running.jit(layer.init)(jax.random.key(0), x)
  params = variables['params']
  assert not params['lora_b'].any()
  np.testing.assert_array_equal(
    layer.apply(variables, x), x @ params['w'].astype(jnp.float32)
  )
  # Uniform to 1 / sqrt(64), in float32 beside a frozen weight in bfloat16.
  assert 0.12 < np.abs(params['lora_a']).max() < 0.125
  assert params['w'].dtype == jnp.bfloat16
  assert params['lora_a'].dtype == params['lora_b'].dtype == jnp.float32
  scale = variables['non_trainable']['lora_scale']
  assert scale == _ALPHA / _R and scale.dtype == jnp.float32


def test_factors_are_sharded_as_their_weight():
  layer_p = _adapted(
    attentions.AttentionProjection, {**_HEADS, 'is_output_projection': True}
  ).set(
    ici_mesh_shape=[1, 1],
    mesh_axis_names=['data', 'mdl'],
  )
  layer_p.weight_split_dims_mapping.wt = ['data', 'mdl', None]
  tree = layer_p.Instantiate().abstract_init_with_metadata(_Y)['params']
  split = lambda name: tuple(tree[name].tensor_split_dims_mapping)
  assert tree['lora_a'].shape == [_N * _H, _R]
  assert split('lora_a') == (('mdl',), None)
  assert tree['lora_b'].shape == [_D, _R]
  assert split('lora_b') == (('data',), None)


def test_only_known_layers_are_adapted():
  block_p = transformers.TransformerFeedForward.config(
    input_dims=4, hidden_dims=8, use_gated_activation=True
  )
  low_rank_adaptation.add_updates(block_p, lora_rank=_R, lora_alpha=_ALPHA)
  layer = block_p.Instantiate()
  names = sorted(
    '/'.join(str(k.key) for k in path)
    for path, _ in jax.tree_util.tree_flatten_with_path(
      jax.eval_shape(layer.init, jax.random.key(0), _X)['params']
    )[0]
    if 'lora' in str(path)
  )
  layers = ('ffn_layer1', 'ffn_layer1_gate', 'ffn_layer2')
  assert names == [f'{x}/linear/lora_{y}' for x in layers for y in 'ab']
  with pytest.raises(ValueError, match='Bias has none; adapt other layers'):
    low_rank_adaptation.add_updates(linears.Bias.config(), lora_rank=_R)


def test_rank_is_needed():
  layer_p = pax_fiddle.Config(
    low_rank_adaptation.AdaptedLinear, input_dims=4, output_dims=4
  )
  with pytest.raises(
    ValueError, match='AdaptedLinear .* needs lora_rank > 0, got 0'
  ):
    running.build(layer_p, _X)


def test_inputs_of_updates_are_dropped_in_training():
  layer_p = pax_fiddle.Config(
    low_rank_adaptation.AdaptedLinear,
    input_dims=_D,
    output_dims=6,
    lora_rank=_D,
    lora_dropout_prob=0.25,
  )
  x = running.normal(4000, _D)
  layer, variables = running.build(layer_p, x)
  params = variables['params']
  # Then the update tells which inputs A gets.
  params['lora_a'] = jnp.eye(_D)
  w, b = (np.asarray(params[name]) for name in ('w', 'lora_b'))
  evaluated = running.run(layer, variables, x, do_eval=True)
  np.testing.assert_allclose(evaluated, x @ (w + b.T), atol=1e-5)
  rngs = {'random': jax.random.key(3)}
  out = running.run(layer, variables, x, rngs=rngs)
  inputs = (np.asarray(out) - x @ w) @ np.linalg.pinv(b.T)
  is_dropped = np.abs(inputs) < 1e-4
  np.testing.assert_allclose(
    inputs, np.where(is_dropped, 0, x / 0.75), atol=1e-4
  )
  assert is_dropped.mean() == pytest.approx(0.25, abs=0.02)


def test_updates_of_experts_have_no_dropout():
  layer_p = _adapted(
    transformers.TransformerFeedForwardMoe, _MOE, lora_dropout_prob=0.25
  )
  with pytest.raises(ValueError, match='must have lora_dropout_prob=0, .*0.25'):
    running.build(layer_p, _X)


def test_a_reference_has_its_own_updates():
  fields = {'input_dims': _D, 'output_dims': 6}
  layer_p = _adapted(linears.Linear, fields, has_reference=True)
  layer, variables = running.build(layer_p, _X)
  params, scale = variables['params'], variables['non_trainable']['lora_scale']

  @running.jit
  def both(variables):
    outputs = layer.apply(variables, _X)
    with low_rank_adaptation.reference():
      return outputs, layer.apply(variables, _X)

  for prefix, got in zip(('', 'ref_'), both(variables), strict=True):
    a, b = (np.asarray(params[f'{prefix}lora_{x}']) for x in 'ab')
    want = _X @ (params['w'] + scale * a @ b.T)
    np.testing.assert_allclose(got, want, atol=1e-5)
  learned = [x for x in params if re.fullmatch(_FACTORS, f'layer/{x}')]
  assert learned == ['lora_a', 'lora_b']
  with (
    low_rank_adaptation.reference(),
    pytest.raises(ValueError, match='needs has_reference to apply'),
  ):
    running.build(_adapted(linears.Linear, fields), _X)


@pytest.mark.parametrize(
  ('path', 'learns'),
  [
    ('params/lm/x/lora_a', True),
    ('params/lm/x/wi_gate_0_lora_b', True),
    ('params/lm/x/lora_magnitude_delta', True),
    ('params/lm/x/ref_wi_0_lora_magnitude_delta', False),
    ('params/lm/x/ref_lora_a', False),
    ('params/lm/x/ref_wi_0_lora_a', False),
    ('params/lm/x/w', False),
    ('non_trainable/lm/x/lora_scale', False),
  ],
)
def test_paths_of_factors(path, learns):
  assert bool(re.fullmatch(_FACTORS, path)) == learns
