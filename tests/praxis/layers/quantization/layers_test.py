# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Quantized layers: what they store, how it is split, and what they compute."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations, quantization
from praxis.layers.quantization import (
  linears,
  quantization_hparams,
  searchable,
)
from praxis.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  WeightQuantizationParams,
)
from tests.praxis.layers import running
from tests.testing import nightly

_X, _HEADS = running.normal(2, 3, 8), running.normal(2, 3, 4, 16, seed=9)
_IMAGE, _IDS = running.normal(2, 4, 4, 8), jnp.array([[0, 5, 15], [2, 2, 7]])
_PROJ = {'input_dim': 8, 'num_heads': 4, 'dim_per_head': 16}
_DIMS = {'input_dims': 8, 'output_dims': 16}

# {name: (class, fields, inputs, weight, contracted dims, its split)}
_LAYERS = {
  'Linear': (quantization.Linear, _DIMS, _X, 'w', (0,), 2),
  'Einsum': (
    quantization.Einsum,
    {'eqn': '...d,df->...f', 'w_shape': (8, 16), 'use_bias': True},
    _X,
    'w',
    (0,),
    2,
  ),
  'OneHeaded': (
    quantization.OneHeadedAttentionProjection,
    {'input_dim': 8, 'output_dim': 16},
    _X,
    'w',
    (0,),
    2,
  ),
  'Projection': (quantization.AttentionProjection, _PROJ, _X, 'w', (0,), 3),
  'Output': (
    quantization.AttentionProjection,
    {**_PROJ, 'is_output_projection': True},
    _HEADS,
    'w',
    (1, 2),
    3,
  ),
  'Combined': (
    quantization.CombinedQKVProjectionLayer,
    _PROJ,
    _X,
    'w',
    (1,),
    3,
  ),
  'CombinedDims': (
    quantization.CombinedQKVProjectionLayer,
    {**_PROJ, 'attention_combine_dims': True, 'use_bias': False},
    _X,
    'w',
    (1,),
    3,
  ),
  'Embedding': (
    quantization.Embedding,
    {'num_classes': 16, 'input_dims': 8},
    _IDS,
    'emb_var',
    (1,),
    2,
  ),
  'Conv2D': (
    quantization.Conv2D,
    {'filter_shape': (3, 3, 8, 4), 'filter_stride': (1, 1), 'bias': True},
    _IMAGE,
    'w',
    (0, 1, 2),
    0,
  ),
}
_WEIGHTS = {
  'int8': {},
  'asymmetric': {'use_symmetric': False},
  'int4': {'precision': 4},
  'bytes': {
    'precision': 4,
    'int4_packed_weights_container_dtype': jnp.int8,
  },
}


def _params(mode, kind=QuantizationType.PTQ, act=None, **weight):
  return QuantizationParams(kind, mode, act, WeightQuantizationParams(**weight))


def _materialized(name, **params):
  """Returns float variables, the quantized tree, and both layers' outputs."""
  cls, fields, x, *_ = _LAYERS[name]
  mode = QuantizationMode
  layers = [
    cls.config(**fields, quantization=_params(m, **params))
    for m in (mode.MATERIALIZE, mode.INFERENCE)
  ]
  layer, variables = running.build(layers[0], x)
  serving = layers[1].Instantiate(name='serving')
  declared = serving.abstract_init_with_metadata(x)

  @running.jit
  def run(variables):
    tree = layer.apply(variables, method=layer.quantize_weight)
    # A serving layer quantizes the weights that are still floats.
    floats = {**tree, 'params': {**tree['params'], **variables['params']}}
    again = serving.apply(floats, method=serving.quantize_weight)
    return (tree, again), layer.apply(variables, x), serving.apply(tree, x)

  with base_layer.JaxContext.new_context():
    (tree, again), exact, served = run(variables)
  jax.tree.map(np.testing.assert_array_equal, again, tree)
  same = jax.tree.map(
    lambda hp, v: hp.full_shape == v.shape and hp.dtype == v.dtype,
    declared,
    tree,
    is_leaf=lambda v: isinstance(v, base_layer.WeightHParams),
  )
  assert all(jax.tree.leaves(same)), (declared, tree)
  return variables, tree, exact, served


def _step(w, axes, weight):
  """Returns half a step of each channel's numbers."""
  bits = weight.get('precision', 8)
  w = np.asarray(w)
  if weight.get('use_symmetric', True):
    bound = np.abs(w).max(axes, keepdims=True)
    return bound / (2 ** (bits - 1) - 1) / 2
  bound = w.max(axes, keepdims=True) - w.min(axes, keepdims=True)
  return bound / (2**bits - 1) / 2


@pytest.mark.parametrize(
  ('name', 'weight'),
  [
    *(('Linear', weight) for weight in _WEIGHTS),
    ('Projection', 'int4'),
    ('Output', 'asymmetric'),
    ('Combined', 'int4'),
    *nightly.cases(('Output', 'int4'), ('Combined', 'asymmetric')),
  ],
)
def test_what_is_materialized_gives_nearly_the_same(name, weight):
  _check(name, _WEIGHTS[weight])


@pytest.mark.parametrize(
  'name', ['Einsum', 'OneHeaded', 'CombinedDims', 'Embedding', 'Conv2D']
)
def test_so_do_the_others(name):
  _check(name, {})


def _check(name, weight):
  cls, fields, x, key, axes, _ = _LAYERS[name]
  variables, tree, exact, served = _materialized(name, **weight)
  w = variables['params'][key]
  stored = tree['params'][key]
  factor = {4: 8}.get(weight.get('precision'), 1)
  if 'int4_packed_weights_container_dtype' in weight:
    factor = 2
  assert stored.size * factor == w.size
  scale = tree['params'][f'{key}_quantized_scale']
  assert scale.shape == tuple(n for i, n in enumerate(w.shape) if i not in axes)
  assert (f'{key}_quantized_zp' in tree['params']) == (
    'use_symmetric' in weight
  )
  # Each weight is off by half a step at most: the output by the sum of |x|
  # times that.
  half = _step(w, axes, weight).max()
  if name == 'Embedding':
    bound = half
  else:
    contracted = int(np.prod([w.shape[i] for i in axes]))
    bound = half * contracted * np.abs(x).max()
    sums = np.abs(np.asarray(x)).reshape(-1, x.shape[-1]).sum(-1).max()
    bound = min(bound, half * sums * contracted / x.shape[-1])
  for got, want in zip(
    jax.tree.leaves(served), jax.tree.leaves(exact), strict=True
  ):
    error = np.abs(np.asarray(got) - want).max()
    assert 0 < error <= bound + 1e-5, (error, bound)


@pytest.mark.parametrize(
  ('name', 'bits'),
  [('Linear', 4), ('Projection', 8), *nightly.cases(('Linear', 8))],
)
def test_blocks_have_scales_and_are_nearer(name, bits):
  weight = {
    'precision': bits,
    'int4_packed_weights_container_dtype': jnp.int8,
  }
  plain = _materialized(name, **weight)
  _, tree, exact, served = _materialized(name, **weight, block_size=4)
  key, axes = _LAYERS[name][3:5]
  shape = list(plain[0]['params'][key].shape)
  shape[axes[0]] //= 4
  assert list(tree['params'][f'{key}_quantized_scale'].shape) == shape
  error = lambda got: sum(
    float(jnp.sum(jnp.square(g - w)))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True)
  )
  assert error(served) < error(plain[3])


@pytest.mark.parametrize('name', ['Combined', 'OneHeaded', 'Einsum'])
def test_other_layers_are_stored_without_blocks(name):
  cls, fields, x, key, axes, _ = _LAYERS[name]
  params = _params(QuantizationMode.INFERENCE, block_size=4)
  layer = cls.config(**fields, quantization=params).Instantiate(name='layer')
  declared = layer.abstract_init_with_metadata(x)['params']
  plain = cls.config(**fields, quantization=None).Instantiate(name='layer')
  shape = plain.abstract_init_with_metadata(x)['params'][key].shape
  assert tuple(declared[key].shape) == tuple(shape)
  scale = [n for i, n in enumerate(shape) if i not in axes]
  assert list(declared[f'{key}_quantized_scale'].shape) == scale


@pytest.mark.parametrize(
  'name',
  ['Combined', 'Conv2D', 'Linear', *nightly.cases('OneHeaded', 'Einsum')],
)
def test_blocks_of_training_are_those_that_are_served(name):
  *_, trained, served = _materialized(
    name,
    kind=QuantizationType.FQ,
    precision=4,
    use_int4_packed_weights=False,
    block_size=4,
  )
  for got, want in zip(
    jax.tree.leaves(served), jax.tree.leaves(trained), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize('symmetric', [True, False])
def test_int4_rows_of_an_embedding_are_not_packed(symmetric):
  weight = {'precision': 4, 'use_symmetric': symmetric}
  variables, tree, exact, served = _materialized('Embedding', **weight)
  table = tree['params']['emb_var']
  assert table.dtype == jnp.int8 and table.shape == (16, 8)
  half = _step(variables['params']['emb_var'], (1,), weight).max()
  assert 0 < np.abs(served - exact).max() <= half + 1e-6


def test_served_queries_keys_and_values_have_one_activation_scale():
  act = ActQuantizationParams(per_channel=True)
  _, tree, _, served = _materialized('Combined', act=act)
  p = jax.tree.map(np.asarray, tree['params'])
  step = np.abs(_X).max() / 127
  rounded = np.round(np.asarray(_X) / step) * step
  w = p['w'] * p['w_quantized_scale'][:, None]
  want = np.einsum('btd,kdnh->kbtnh', rounded, w) + p['b'][:, None, None]
  np.testing.assert_allclose(np.stack(served), want, atol=1e-5)


@pytest.mark.parametrize('per_channel', [True, False])
def test_activations_are_quantized_too(per_channel):
  act = ActQuantizationParams(per_channel=per_channel)
  variables, _, exact, served = _materialized('Linear', act=act)
  w, x = np.asarray(variables['params']['w']), np.asarray(_X)
  axes = -1 if per_channel else None
  step = np.abs(x).max(axes, keepdims=True) / 127
  rounded = np.round(x / step) * step
  scale = np.abs(w).max(0) / 127
  want = rounded @ (np.round(w / scale) * scale)
  np.testing.assert_allclose(served, want, atol=1e-5)
  np.testing.assert_allclose(exact, x @ w, atol=1e-5)


@pytest.mark.parametrize('name', ['Linear', 'Conv2D'])
def test_activations_without_a_precision_are_not_quantized(name):
  *_, want = _materialized(name)
  *_, got = _materialized(name, act=ActQuantizationParams(precision=None))
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  'norm', [normalizations.WeightNormL2, normalizations.SpectralNorm]
)
def test_a_normalized_kernel_is_stored_normalized(norm):
  cls, fields, x, *_ = _LAYERS['Conv2D']
  cfg = cls.config(**fields, weight_norm_tpl=pax_fiddle.Config(norm))
  cfg.quantization = _params(QuantizationMode.MATERIALIZE)
  layer, variables = running.build(cfg, x)
  serving = cfg.clone().set(quantization=_params(QuantizationMode.INFERENCE))
  serving = serving.Instantiate(name='serving')

  @running.jit
  def run(variables):
    tree = layer.apply(variables, method=layer.quantize_weight)
    return tree, layer.apply(variables, x), serving.apply(tree, x)

  with base_layer.JaxContext.new_context():
    tree, exact, served = run(variables)
    specs = layer.apply(variables, method=layer.quantized_partition_specs)
  names = {'w', 'w_quantized_scale', 'b'}
  assert set(serving.abstract_init_with_metadata(x)['params']) == names
  for stored in (tree, specs):
    assert set(stored) == {'params'} and set(stored['params']) == names
  assert 0 < np.abs(served - exact).max() < 0.01 * np.abs(exact).max()


@pytest.mark.parametrize('name', ['Linear', 'Projection', 'Combined'])
def test_scales_are_split_as_the_channels_are(name):
  cls, fields, x, key, axes, rank = _LAYERS[name]
  cfg = cls.config(
    **fields,
    quantization=_params(QuantizationMode.MATERIALIZE),
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  split = ['data', 'mdl', None][:rank]
  cfg.weight_split_dims_mapping.wt = split
  layer = cfg.Instantiate(name='layer')
  variables = jax.eval_shape(lambda k: layer.init(k, x), jax.random.key(0))
  specs = layer.apply(variables, method=layer.quantized_partition_specs)
  weight = ([None] if name == 'Combined' else []) + split
  assert specs['params'][key].meta == PartitionSpec(*weight)
  scale = [a for i, a in enumerate(weight) if i not in axes]
  got = specs['params'][f'{key}_quantized_scale'].meta
  assert got == PartitionSpec(*scale)
  # The variables that are served are replicated, except those of Linear.
  cfg.quantization = _params(QuantizationMode.INFERENCE)
  serving = cfg.Instantiate(name='layer')
  declared = serving.abstract_init_with_metadata(x)['params']
  served = declared[f'{key}_quantized_scale'].tensor_split_dims_mapping
  assert served == (scale if name == 'Linear' else None)
  variables = jax.eval_shape(lambda k: serving.init(k, x), jax.random.key(0))
  again = serving.apply(variables, method=serving.quantized_partition_specs)
  assert again == specs


def test_an_nhd_weight_is_split_in_its_order():
  cfg = quantization.AttentionProjection.config(
    **_PROJ,
    is_output_projection=True,
    use_nhd_shape=True,
    quantization=_params(QuantizationMode.INFERENCE),
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.wt = ['mdl', None, 'data']
  layer = cfg.Instantiate(name='layer')
  variables = jax.eval_shape(lambda k: layer.init(k, _HEADS), jax.random.key(0))
  specs = layer.apply(variables, method=layer.quantized_partition_specs)
  found = {k: v.meta for k, v in specs['params'].items()}
  assert found == {
    'w': PartitionSpec('mdl', None, 'data'),
    'w_quantized_scale': PartitionSpec('data'),
    'b': PartitionSpec('data'),
  }


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('Linear', 'aqt'),
    ('Projection', 'fq_vn'),
    ('Combined', 'fq'),
    *nightly.cases(('Linear', 'fq'), ('Combined', 'aqt')),
  ],
)
def test_layers_train_as_they_will_be_served(name, kind):
  cls, fields, x, key, axes, _ = _LAYERS[name]
  weight = {'vn_scale': 0.01} if kind == 'fq_vn' else {}
  params = _params(
    QuantizationMode.TRAINING, QuantizationType(kind), precision=4, **weight
  )
  layer, variables = running.build(cls.config(**fields, quantization=params), x)

  @running.jit
  def run(variables):
    apply = lambda v: layer.apply(v, x, rngs=jax.random.key(1))
    outputs, vjp = jax.vjp(apply, variables)
    return outputs, vjp(jax.tree.map(jnp.ones_like, outputs))[0]

  outputs, grads = run(variables)
  w = np.asarray(variables['params'][key])
  if kind != 'fq_vn':
    scale = np.abs(w).max(axes, keepdims=True) / 7
    w = np.round(w / scale) * scale
  equation = layer._equations()[key].replace('...K', 'K...')
  got = jnp.stack(outputs) if name == 'Combined' else outputs
  bias = variables['params'].get('b', 0)
  if name == 'Combined':
    bias = bias[:, None, None]
  want = np.einsum(equation, x, w) + bias
  slack = 1e-4 if kind != 'fq_vn' else 0.02 * np.abs(x).sum(-1).max()
  np.testing.assert_allclose(got, want, atol=slack)
  assert np.isfinite(grads['params'][key]).all()
  assert np.abs(grads['params'][key]).max() > 0.1


@pytest.mark.parametrize(
  ('kind', 'symmetric'),
  [
    ('fq', True),
    ('aqt', False),
    *nightly.cases(('fq', False), ('aqt', True)),
  ],
)
def test_activations_far_from_zero_train_as_they_will_be_served(
  kind, symmetric
):
  act = ActQuantizationParams(symmetric=symmetric)
  params = _params(QuantizationMode.TRAINING, QuantizationType(kind), act)
  cfg = quantization.Linear.config(**_DIMS, quantization=params)
  x = _X + 5
  layer, variables = running.build(cfg, x)
  w = np.asarray(variables['params']['w'])
  got = running.run(layer, variables, x)
  np.testing.assert_allclose(got, x @ w, atol=0.02 * np.abs(x @ w).max())


def test_quantized_training_uses_its_own_params():
  params = _params(QuantizationMode.QT)
  params.quantized_training_params = (
    quantization_hparams.QuantizedTrainingParams(bits_fwd=None, bits_bwd=None)
  )
  params.quantized_training_params.einsum_output_dtype = jnp.float32
  layer, variables = running.build(
    linears.Linear.config(**_DIMS, quantization=params), _X
  )
  rngs = jax.random.key(0)
  outputs = running.run(layer, variables, _X, rngs=rngs)
  want = np.asarray(_X) @ np.asarray(variables['params']['w'])
  np.testing.assert_allclose(outputs, want, atol=1e-5)


def test_two_matrices_of_low_rank_are_both_quantized():
  cfg = linears.Linear.config(
    **_DIMS, rank=2, quantization=_params(QuantizationMode.MATERIALIZE)
  )
  layer, variables = running.build(cfg, _X)
  assert running.shapes(variables) == {'w_a': (8, 2), 'w_b': (2, 16)}
  serving = cfg.clone().set(quantization=_params(QuantizationMode.INFERENCE))
  serving = serving.Instantiate(name='s')

  @running.jit
  def run(variables):
    tree = layer.apply(variables, method=layer.quantize_weight)
    return tree, serving.apply(tree, _X), layer.apply(variables, _X)

  tree, got, want = run(variables)
  assert {k: v.shape for k, v in tree['params'].items()} == {
    'w_a': (8, 2),
    'w_a_quantized_scale': (2,),
    'w_b': (2, 16),
    'w_b_quantized_scale': (16,),
  }
  np.testing.assert_allclose(got, want, atol=0.1)


@pytest.mark.parametrize('order', ['pre', 'post'])
def test_low_rank_residuals(order):
  cfg = linears.LinearLoRA.config(
    **_DIMS,
    lora_rank=2,
    norm_order=order,
    quantization=_params(QuantizationMode.TRAINING),
  )
  layer, variables = running.build(cfg, _X)
  p = jax.tree.map(np.asarray, variables['params'])
  assert p['w_left'].shape == (8, 2) and p['w_right'].shape == (2, 16)

  def norm(place, x):
    if order != place:
      return x
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    return scaled * (1 + p['norm']['scale']) + p['norm']['bias']

  x = np.asarray(_X)
  low = norm('mid', norm('pre', x) @ p['w_left']) @ p['w_right']
  want = x @ p['w'] + norm('post', low)
  got = running.run(layer, variables, _X)
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_search_chooses_the_precision():
  params = _params(QuantizationMode.TRAINING, QuantizationType.AQT)
  cfg = searchable.SearchableLinear.config(
    **_DIMS, precisions=[2, 8], quantization=params
  )
  layer = cfg.Instantiate(name='layer')
  variables = running.jit(layer.init)(jax.random.key(0), _X)
  apply = running.compiled(layer)
  w = np.asarray(variables['params']['w'])
  select = variables['non_trainable']['weight_quantizer']
  assert select['rl_variables'].shape == (2,)
  for choice, bits in enumerate((2, 8)):
    select['decision'] = jnp.uint8(choice)
    scale = np.abs(w).max(0) / (2 ** (bits - 1) - 1)
    want = np.asarray(_X) @ (np.round(w / scale) * scale)
    np.testing.assert_allclose(apply(variables, _X), want, atol=1e-4)


def test_what_does_not_fit_is_refused():
  inference = QuantizationMode.INFERENCE

  def build(cls=linears.Linear, fields=_DIMS, x=_X, **params):
    mode = params.pop('mode', inference)
    cfg = cls.config(**fields, quantization=_params(mode, **params))
    cfg.Instantiate(name='layer').abstract_init_with_metadata(x)

  with pytest.raises(ValueError, match='at least precision=8'):
    build(dtype=jnp.int4, use_int4_packed_weights=False)
  with pytest.raises(ValueError, match='packed weights must have dtype int8'):
    build(precision=4, dtype=jnp.int4)
  with pytest.raises(ValueError, match='must be a multiple of 8'):
    build(fields={'input_dims': 12, 'output_dims': 8}, precision=4)
  with pytest.raises(NotImplementedError, match='FR has no mode INFERENCE'):
    build(kind=QuantizationType.FR)
  with pytest.raises(ValueError, match='CALIB needs'):
    build(mode=QuantizationMode.CALIB)
  with pytest.raises(ValueError, match='use_symmetric must be True'):
    build(
      quantization.Conv2D, _LAYERS['Conv2D'][1], _IMAGE, use_symmetric=False
    )
  with pytest.raises(NotImplementedError, match='must be AQT'):
    fields = {'input_dim': 8, 'hidden_dim': 8, 'num_heads': 2}
    build(quantization.DotProductAttention, fields)
  with pytest.raises(NotImplementedError, match='ids are not quantized'):
    act = ActQuantizationParams()
    build(*_LAYERS['Embedding'][:3], act=act)


def test_a_search_leaves_activations_unquantized_without_a_precision():
  act = ActQuantizationParams(precision=None)
  params = _params(QuantizationMode.TRAINING, QuantizationType.AQT, act)
  layer = searchable.SearchableLinear.config(
    **_DIMS, precisions=[2, 8], quantization=params
  ).Instantiate(name='layer')
  variables = running.jit(layer.init)(jax.random.key(0), _X)
  assert 'weight_quantizer' in variables['non_trainable']
  assert 'act_quantizer' not in variables['non_trainable']
