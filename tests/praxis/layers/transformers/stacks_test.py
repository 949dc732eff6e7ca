# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Stacks of layers: unrolled, repeated and pipelined are the same function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, checkpoint_policy, transformers
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D, _F, _N, _L = 4, 6, 8, 12, 2, 4
Policy = checkpoint_policy.AutodiffCheckpointType
_CACHE = [base_layer.DECODE_CACHE]
_SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0]] * 2 + [[1] * 6] * 2)
_POSITIONS = jnp.array([[0, 1, 2, 0, 1, 0]] * 2 + [[0, 1, 2, 3, 4, 5]] * 2)
_PADDINGS = jnp.where(_SEGMENTS == 0, 1.0, 0.0)


def _stack(num_layers=_L, **kwargs):
  attention = pax_fiddle.Config(
    attentions.DotProductAttention,
    use_rotary_position_emb=True,
    combine_qkv=True,
  )
  fields = {
    'mask_self_attention': True,
    'num_layers': num_layers,
    'model_dims': _D,
    'hidden_dims': _F,
    'num_heads': _N,
    'packed_input': True,
    'transformer_layer_params_tpl': pax_fiddle.Config(
      transformers.Transformer, tr_atten_tpl=attention
    ),
  }
  return transformers.StackedTransformer.config(**{**fields, **kwargs})


def _repeated(layers_per_block=1, **kwargs):
  return transformers.StackedTransformerRepeated.config(
    block=_stack(layers_per_block), x_times=_L // layers_per_block, **kwargs
  )


def _pipelined(stages=2, repeats=1, **kwargs):
  return transformers.PipelinedTransformer.config(
    pipeline_stage=_stack(_L // stages // repeats),
    num_pipeline_stages=stages,
    circular_repeat=repeats,
    **kwargs,
  )


def _call(segment_mask=True):
  mask = attentions.segment_mask(_SEGMENTS) if segment_mask else None
  return (running.normal(_B, _T, _D), _PADDINGS, mask), {
    'segment_pos': _POSITIONS
  }


@pytest.fixture(scope='module')
def unrolled():
  """The reference: every layer by itself."""
  args, kwargs = _call()
  return running.build(_stack(), *args, **kwargs)


@pytest.fixture(scope='module')
def wanted(unrolled):
  """Its loss, and the gradients of that."""
  layer, variables = unrolled
  return _value_and_gradient(layer, variables['params'])


def _stacked(params, layers_per_block, prefix):
  """Returns x_layers_0.. as blocks of layers stacked on leading axes."""
  layers = [params[f'x_layers_{i}'] for i in range(_L)]
  blocks = {}
  for j in range(layers_per_block):
    own = layers[j::layers_per_block]
    blocks[f'x_layers_{j}'] = jax.tree.map(
      lambda *xs: jnp.stack(xs).reshape(*prefix, *xs[0].shape), *own
    )
  return blocks


def _value_and_gradient(layer, params):
  args, kwargs = _call()

  def loss(params, x):
    out = layer.apply({'params': params}, x, *args[1:], **kwargs)
    return jnp.sum(out * jnp.cos(jnp.arange(_D)) * (1 - _PADDINGS)[..., None])

  return running.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, args[0])


def _assert_close(got, want):
  scale = lambda x: np.max(np.abs(x)) + 1e-3
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale(b)),
    got,
    want,
  )


@pytest.mark.parametrize(
  'name, config, path, layers_per_block, prefix',
  [
    (
      'scan_of_two_saving_all',
      _repeated(2, checkpoint_policy=Policy.SAVE_EVERYTHING, scan_unroll=2),
      ('repeat', 'sub'),
      2,
      (2,),
    ),
    (
      'nested',
      _repeated(nd_prefix_shape=[2, 2], checkpoint_policy=Policy.SAVE_DOT_ONLY),
      ('repeat', 'sub'),
      1,
      (2, 2),
    ),
    (
      'circular_streaming',
      _pipelined(
        repeats=2,
        num_pipeline_microbatches=4,
        stream_io=True,
        pipeline_broadcast_inputs=True,
      ),
      ('pipeline', 'body'),
      1,
      (2, 2),
    ),
    *nightly.cases(
      (
        'pipeline',
        _pipelined(num_pipeline_microbatches=4, stream_io=True),
        ('pipeline', 'body'),
        2,
        (2,),
      ),
      ('scan', _repeated(), ('repeat', 'sub'), 1, (4,)),
      (
        'circular',
        _pipelined(repeats=2, pipeline_microbatch_size=2),
        ('pipeline', 'body'),
        1,
        (2, 2),
      ),
    ),
  ],
)
def test_stacked_weights_are_the_same_function(
  unrolled, wanted, name, config, path, layers_per_block, prefix
):
  _, variables = unrolled
  want, (want_weights, want_input) = wanted
  nest = lambda tree: {path[0]: {path[1]: tree}}
  stacked = lambda p: nest(_stacked(p, layers_per_block, prefix))
  other = config.clone().set(name='other').Instantiate()
  params = stacked(variables['params'])
  got, (weights, inputs) = _value_and_gradient(other, params)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  _assert_close(inputs, want_input)
  _assert_close(weights, stacked(want_weights))


def test_layers_before_the_repeated_ones_have_their_own_weights(
  unrolled, wanted
):
  _, variables = unrolled
  want, (want_weights, want_input) = wanted

  def split(tree):
    first, *others = (tree[f'x_layers_{i}'] for i in range(_L))
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), *others)
    repeat = {'sub': {'x_layers_0': stack}}
    return {'prefix_layers': {'x_layers_0': first}, 'repeat': repeat}

  config = _repeated(prefix=_stack(1, remat=True)).set(x_times=_L - 1)
  layer = config.set(name='other').Instantiate()
  got, (weights, inputs) = _value_and_gradient(
    layer, split(variables['params'])
  )
  np.testing.assert_allclose(got, want, rtol=1e-5)
  _assert_close(inputs, want_input)
  _assert_close(weights, split(want_weights))


def test_declared_shapes_and_splits_of_stacked_weights():
  config = _repeated(repeat_optimizer_dims_mapping=[-1], name='layer')
  config.weight_split_dims_mapping.block = ['data']
  args, kwargs = _call()
  declared = config.Instantiate().abstract_init_with_metadata(*args, **kwargs)
  layer = declared['params']['repeat']['sub']['x_layers_0']
  weight = layer['self_attention']['combined_qkv']['w']
  assert weight.repeat_prefix == [_L]
  assert tuple(weight.shape) == (3, _D, _N, _D // _N)
  assert list(weight.repeat_prefix_split_dims_mapping) == ['data']
  assert list(weight.repeat_optimizer_dims_mapping) == [-1]

  config = _pipelined(repeats=2, num_pipeline_microbatches=4, name='layer')
  config.weight_split_dims_mapping.stages = ['stage']
  declared = config.Instantiate().abstract_init_with_metadata(*args, **kwargs)
  layer = declared['params']['pipeline']['body']['x_layers_0']
  weight = layer['ff_layer']['ffn_layer1']['linear']['w']
  assert weight.repeat_prefix == [2, 2]
  assert list(weight.repeat_prefix_split_dims_mapping) == [None, 'stage']


def test_layers_of_a_stack_start_differently():
  args, kwargs = _call()
  layer = _repeated(name='layer').Instantiate()
  init = running.jit(lambda key: layer.init(key, *args, **kwargs))
  params = init(jax.random.key(0))['params']['repeat']['sub']['x_layers_0']
  w = np.asarray(params['ff_layer']['ffn_layer1']['linear']['w'])
  assert w.shape == (_L, _D, _F)
  assert len(np.unique(w)) > 0.99 * w.size


@pytest.fixture(scope='module')
def one_layer(unrolled):
  _, variables = unrolled
  params = {'x_layers_0': variables['params']['x_layers_0']}
  plain = _stack(1, name='plain').Instantiate()
  return params, _value_and_gradient(plain, params)


@pytest.mark.parametrize(
  'kind',
  [
    Policy.SAVE_DOT_EXCEPT_LOGITS_FFN1,
    *nightly.cases(Policy.SAVE_NOTHING, Policy.SAVE_DOT_WITH_NO_BATCH_DIM),
  ],
)
def test_policies_change_nothing_but_memory(one_layer, kind):
  params, want = one_layer
  layer = _stack(1, remat=True, checkpoint_policy=kind, name='remat')
  _assert_close(_value_and_gradient(layer.Instantiate(), params), want)


def test_packed_segments_and_padding_do_not_leak():
  args, kwargs = _call()
  layer, variables = running.build(_stack(2), *args, **kwargs)

  def second_segment(x):
    out = layer.apply(variables, x, *args[1:], **kwargs)
    return jnp.sum(jnp.sin(out[0, 3:5]))

  gradient = running.jit(jax.grad(second_segment))(args[0])
  assert np.all(np.abs(gradient[0, 3:5]) > 0)
  for hidden in (gradient[0, :3], gradient[0, 5], gradient[1:]):
    np.testing.assert_array_equal(hidden, 0)


def test_folded_padding_leaves_the_segment_mask_as_it_is():
  mask = attentions.causal_segment_mask(_SEGMENTS)
  x = running.normal(_B, _T, _D)
  got, cross = transformers.compute_attention_masks_for_fprop(
    x, _PADDINGS, False, mask, fold_padding_with_segment_mask=True
  )
  assert got is mask and cross is None
  with pytest.raises(ValueError, match='segment_mask must be given'):
    transformers.compute_attention_masks_for_fprop(
      x, _PADDINGS, fold_padding_with_segment_mask=True
    )


def test_masks_of_cross_attention():
  x = running.normal(1, 2, _D)
  _, cross = transformers.compute_attention_masks_for_fprop(
    x,
    jnp.zeros((1, 2)),
    cross_inputs=running.normal(1, 3, _D),
    cross_paddings=jnp.array([[0, 0, 1]]),
    cross_segment_mask=attentions.segment_mask(
      jnp.array([[1, 2]]), jnp.array([[1, 2, 2]])
    ),
  )
  np.testing.assert_array_equal(
    np.asarray(cross)[0, 0] == 0, [[1, 0, 0], [0, 1, 0]]
  )


def test_masks_of_one_step():
  segment = attentions.segment_mask(
    jnp.array([[2]]), jnp.array([[1, 2, 2, 2]])
  )[:, 0]
  mask, cross = transformers.compute_attention_masks_for_extend_step(
    2, 4, segment, jnp.array([[0, 1]])
  )
  np.testing.assert_array_equal(np.asarray(mask)[0, 0] == 0, [0, 1, 1, 0])
  np.testing.assert_array_equal(np.asarray(cross)[0, 0] == 0, [1, 0])


_DECODERS = {
  'unrolled': _stack(2),
  'separate_caches': _repeated().set(x_times=2),
  'scanned': _repeated(unroll_in_decode=False).set(x_times=2),
  'nested': _repeated(nd_prefix_shape=[2, 2]),
  'prefix': _repeated(prefix=_stack(1)).set(x_times=2),
}


@pytest.mark.parametrize(
  'name', nightly.except_for(['scanned', 'nested', 'prefix'], _DECODERS)
)
def test_steps_equal_the_forward_pass(name):
  x = running.normal(_B, _T, _D)
  positions = jnp.tile(jnp.arange(_T), (_B, 1))
  args = (x, jnp.zeros((_B, _T)), attentions.causal_mask(x))
  layer, variables = running.build(_DECODERS[name], *args)
  want, cache = running.run(layer, variables, *args, mutable=_CACHE)
  half = running.run(
    layer,
    {**variables, **cache},
    mutable=_CACHE,
    method=lambda layer: layer.transform_decode_state(_halve_and_pad),
  )[1]

  @running.jit
  def step(cache, x, t):
    return layer.apply(
      {**variables, **cache},
      x,
      time_step=t,
      segment_pos=positions[:, t],
      method='extend_step',
      mutable=_CACHE,
    )

  cache = half
  for t in range(_T // 2, _T):
    got, cache = step(cache, x[:, t], jnp.int32(t))
    np.testing.assert_allclose(got, want[:, t], atol=5e-6)


def _halve_and_pad(x, batch_dim, time_dim):
  """Keeps the first half of the steps, and makes room for twice as many."""
  assert (batch_dim, time_dim) == (0, 1)
  kept = jax.lax.slice_in_dim(x, 0, _T // 2, axis=time_dim)
  widths = [(0, _T if dim == time_dim else 0) for dim in range(x.ndim)]
  return jnp.pad(kept, widths, constant_values=7.0)


def test_steps_do_not_see_what_is_before_their_segment():
  x = running.normal(_B, _T, _D)
  args = (x, jnp.zeros((_B, _T)), attentions.causal_mask(x))
  layer, variables = running.build(_stack(1), *args)
  # Two steps of padding before a prompt of two, then one step.
  late = jnp.pad(x[:, :4], [(0, 0), (2, 0), (0, 0)], constant_values=50.0)
  positions = jnp.maximum(jnp.arange(6) - 2, 0)[None]
  segments = jnp.where(jnp.arange(6) < 2, 0, 1)[None]
  _, cache = running.run(
    layer,
    variables,
    late,
    jnp.zeros((_B, _T)),
    attentions.segment_mask(segments),
    segment_pos=positions,
    mutable=_CACHE,
  )
  got, _ = running.run(
    layer,
    {**variables, **cache},
    x[:, 2:4],
    time_step=jnp.int32(4),
    segment_pos=jnp.tile(jnp.arange(2, 4), (_B, 1)),
    method='extend_step',
    mutable=_CACHE,
  )
  want = running.run(
    layer, variables, x[:, :4], jnp.zeros((_B, 4)), args[2][..., :4, :4]
  )
  np.testing.assert_allclose(got, want[:, 2:], atol=5e-6)


def test_a_pipeline_has_no_steps():
  layer = _pipelined().set(name='layer').Instantiate()
  with pytest.raises(NotImplementedError, match='PipelineCompatible'):
    layer.apply({}, jnp.zeros((_B, _D)), time_step=0, method='extend_step')


def test_a_pipeline_decodes_as_a_repeat():
  args, kwargs = _call()
  pipelined = _pipelined(repeats=2, num_pipeline_microbatches=4)
  layer, variables = running.build(pipelined, *args, **kwargs)
  compatible = transformers.PipelineCompatibleStackedTransformerRepeated.config(
    block=_stack(1), x_times=4, nd_prefix_shape=[2, 2], name='repeat'
  ).Instantiate()
  np.testing.assert_allclose(
    running.run(compatible, variables, *args, **kwargs),
    running.run(layer, variables, *args, **kwargs),
    atol=1e-5,
  )


def test_bfloat16(unrolled):
  _, variables = unrolled
  args, kwargs = _call()
  config = _repeated(fprop_dtype=jnp.bfloat16, name='layer')
  params = {'repeat': {'sub': _stacked(variables['params'], 1, (_L,))}}
  got = running.run(config.Instantiate(), {'params': params}, *args, **kwargs)
  assert got.dtype == jnp.bfloat16
  want = running.run(unrolled[0], variables, *args, **kwargs)
  assert np.mean(np.abs(np.asarray(got, np.float32) - want)) < 0.05


def test_configuration_of_the_layers():
  config = _stack(
    3,
    dropout_prob=0.3,
    atten_dropout_prob=0.0,
    residual_droppath_prob=0.6,
    moe_layers=[1],
    num_experts=4,
    name='layer',
  )
  args, kwargs = _call()
  layer = config.Instantiate().bind({}, rngs={'params': jax.random.key(0)})
  first, second, third = layer.x_layers
  assert first.relu_dropout_prob == first.residual_dropout_prob == 0.3
  assert first.atten_dropout_prob == 0.0
  np.testing.assert_allclose(third.residual_droppath_prob, 0.4)
  assert first.residual_droppath_prob == 0.0
  moe = transformers.TransformerFeedForwardMoe
  assert [x.tr_fflayer_tpl.cls is moe for x in (first, second, third)] == [
    False,
    True,
    False,
  ]


def test_templates_take_equal_shares_of_the_layers():
  kinds = [
    pax_fiddle.Config(transformers.Transformer, norm_policy=policy)
    for policy in ('pre', 'post')
  ]
  layer = _stack(4, transformer_layer_params_tpl=kinds, name='layer')
  layers = layer.Instantiate().bind({}).x_layers
  assert [x.norm_policy for x in layers] == ['pre', 'pre', 'post', 'post']


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'num_layers': 0}, 'needs num_layers > 0'),
    ({'local_window_size': [(1, 1)] * 9}, 'local_window_size must be one'),
    ({'moe_layers': [0]}, 'need num_experts'),
    (
      {
        'num_layers': 3,
        'transformer_layer_params_tpl': [
          pax_fiddle.Config(transformers.Transformer)
        ]
        * 2,
      },
      'must be a multiple of the number of templates.*got 3',
    ),
  ],
)
def test_impossible_stacks_are_refused(kwargs, message):
  args, call = _call()
  with pytest.raises(ValueError, match=message):
    running.build(_stack(**kwargs), *args, **call)


def test_missing_masks_are_refused(unrolled):
  layer, variables = unrolled
  args, _ = _call(segment_mask=False)
  with pytest.raises(ValueError, match='segment_mask must be given'):
    layer.apply(variables, *args)


@pytest.mark.parametrize(
  'layer',
  [_stack(), pax_fiddle.Config(attentions.DotProductAttention, name='a')],
)
def test_layers_that_check_their_fields_check_the_dtype_too(layer):
  with pytest.raises(TypeError, match='must be a dtype'):
    layer.clone().set(dtype='no dtype').Instantiate()


class _RootStack(transformers.StackedTransformer):
  is_shared_weight_root = True


def test_rematerialized_layers_share_weights():
  stack = _stack(2, packed_input=False)
  attention = stack.transformer_layer_params_tpl.tr_atten_tpl
  attention.relative_bias_tpl = pax_fiddle.Config(
    attentions.RelativeBias, shared_weight_layer_id='bias'
  )
  stack = pax_fiddle.Config(_RootStack, **stack.__arguments__)
  x, paddings = running.normal(_B, _T, _D), jnp.zeros((_B, _T))
  layer, variables = running.build(stack, x, paddings)
  remat, same = running.build(stack.clone().set(remat=True), x, paddings)
  assert {*variables['params']} == {'x_layers_0', 'x_layers_1', 'bias'}
  assert jax.tree.structure(same) == jax.tree.structure(variables)

  def gradients(layer):
    loss = lambda v: jnp.sum(jnp.sin(layer.apply(v, x, paddings)))
    return running.jit(jax.value_and_grad(loss))(variables)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    gradients(remat),
    gradients(layer),
  )
