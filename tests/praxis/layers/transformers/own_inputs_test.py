# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Stacks whose layers have inputs of their own or keys of other layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  multi_query_attention,
  shared_key_attention,
  transformers,
)
from praxis.layers.transformer_models import stack_configs
from tests.praxis.layers import running
from tests.testing import numpy_layers

_B, _T, _D, _F, _P = 2, 6, 8, 12, 3
_CACHE = [base_layer.DECODE_CACHE]
_SOURCE = shared_key_attention.KeySourceAttention
_SHARED = shared_key_attention.SharedKeyAttention
_OWN = multi_query_attention.MultiQueryDotProductAttention
# The last two attend to the keys of the first and of the second layer.
_KINDS = (_SOURCE, _SOURCE, _OWN, _SHARED, _SHARED)
_SOURCES = (None, None, None, 0, 1)


def _layer(attention, **fields):
  return pax_fiddle.Config(
    transformers.Transformer,
    tr_atten_tpl=pax_fiddle.Config(
      attention,
      use_rotary_position_emb=True,
      consolidate_rope_key_state=True,
    ),
    **fields,
  )


def _stack(kinds=_KINDS, sources=_SOURCES, layer_fields=None, **fields):
  return transformers.StackedTransformer.config(
    num_layers=len(kinds),
    model_dims=_D,
    hidden_dims=_F,
    num_heads=2,
    mask_self_attention=True,
    transformer_layer_params_tpl=[
      _layer(kind, **(layer_fields or {})) for kind in kinds
    ],
    key_sources=sources,
    **fields,
  )


def _branches(num_layers=2, **fields):
  branch = pax_fiddle.Config(transformers.LayerInputBranch, layer_input_dims=_P)
  return _stack(
    (_OWN,) * num_layers, None, {'layer_input_tpl': branch}, **fields
  )


def _call():
  return running.normal(_B, _T, _D), jnp.zeros((_B, _T))


def _declare(layer, **kwargs):
  jax.eval_shape(layer.init, jax.random.key(0), *_call(), **kwargs)


def _layer_inputs(num_layers=2):
  return running.normal(_B, _T, num_layers, _P, seed=7)


def _one_by_one(stack, x, paddings):
  """One layer after the other, with the keys that a source returns."""
  mask, keys = attentions.causal_mask(x), {}
  for i, source in enumerate(stack.key_sources):
    own = {} if source is None else {'keys_and_values': keys[source]}
    x, attended = stack.x_layers[i](x, paddings, mask, **own)
    keys[i] = attended.self_atten
  return x


def test_layers_attend_to_the_keys_of_their_source():
  x, paddings = _call()
  layer, variables = running.build(_stack(), x, paddings)
  got = running.run(layer, variables, x, paddings)
  want = running.run(layer, variables, x, paddings, method=_one_by_one)
  np.testing.assert_allclose(got, want, atol=1e-6)
  names = set(variables['params']['x_layers_4']['self_attention'])
  assert names == {'query', 'post'}


def test_rematerialized_layers_have_the_same_gradients():
  """Also the keys of the first layer, to which the last one attends."""
  x, paddings = _call()
  kinds = (_SOURCE, _SHARED), (None, 0)
  layer, variables = running.build(_stack(*kinds), x, paddings)
  remat = _stack(*kinds, remat=True).Instantiate()

  def gradients(layer, **kwargs):
    loss = lambda v: jnp.sum(jnp.sin(layer.apply(v, x, paddings, **kwargs)))
    return running.jit(jax.grad(loss))(variables)['params']

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    gradients(remat),
    gradients(layer, method=_one_by_one),
  )


_STACKS = {
  'keys': (_stack((_SOURCE, _SOURCE, _SHARED), (None, None, 0)), 0),
  'inputs': (_branches(), 2),
}


@pytest.mark.parametrize('name', _STACKS)
def test_steps_equal_the_forward_pass(name):
  config, num_inputs = _STACKS[name]
  x, paddings = _call()
  own = {'layer_inputs': _layer_inputs()} if num_inputs else {}
  layer, variables = running.build(config, x, paddings, **own)
  want, cache = running.run(
    layer, variables, x, paddings, **own, mutable=_CACHE
  )
  layers = cache[base_layer.DECODE_CACHE]
  assert layers.keys() <= {'x_layers_0', 'x_layers_1'}

  def grow(stack):
    """Keeps two steps."""
    stack.transform_decode_state(
      lambda x, batch, time: jax.lax.dynamic_update_slice_in_dim(
        jnp.zeros_like(x), jax.lax.slice_in_dim(x, 0, 2, axis=time), 0, time
      )
    )

  cache = running.run(
    layer, {**variables, **cache}, method=grow, mutable=_CACHE
  )[1]
  step = running.compiled(layer, method='extend_step', mutable=_CACHE)
  # Two steps at once, then one by one.
  for steps in (slice(2, 4), 4, 5):
    first = steps.start if isinstance(steps, slice) else steps
    of_steps = {key: value[:, steps] for key, value in own.items()}
    got, cache = step(
      {**variables, **cache},
      x[:, steps],
      time_step=jnp.int32(first),
      **of_steps,
    )
    np.testing.assert_allclose(got, want[:, steps], atol=1e-5)


def test_a_layer_adds_its_input_gated():
  x, layer_input = running.normal(_B, _T, _D), running.normal(_B, _T, _P)
  config = transformers.LayerInputBranch.config(
    model_dims=_D, layer_input_dims=_P
  )
  layer, variables = running.build(config, x, layer_input)
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), variables['params'])
  gate = np.asarray(jax.nn.gelu(np.asarray(x) @ p['gate']['w']))
  projected = (gate * np.asarray(layer_input)) @ p['proj']['w']
  want = np.asarray(x) + numpy_layers.rms_norm(projected, p['ln']['scale'])
  got = running.run(layer, variables, x, layer_input)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_each_layer_has_its_own_input():
  (x, paddings), inputs = _call(), _layer_inputs()
  layer, variables = running.build(
    _branches(), x, paddings, layer_inputs=inputs
  )

  def one_by_one(stack, x):
    mask = attentions.causal_mask(x)
    for i, x_layer in enumerate(stack.x_layers):
      x, _ = x_layer(x, paddings, mask, layer_input=inputs[:, :, i])
    return x

  got = running.run(layer, variables, x, paddings, layer_inputs=inputs)
  want = running.run(layer, variables, x, method=one_by_one)
  np.testing.assert_allclose(got, want, atol=1e-6)


def test_layers_may_have_widths_of_their_own():
  stack = _branches()
  stack.transformer_layer_params_tpl[1].hidden_dims = 20
  x, paddings = _call()
  _, variables = running.build(stack, x, paddings, layer_inputs=_layer_inputs())
  widths = [
    variables['params'][f'x_layers_{i}']['ff_layer']['ffn_layer1']['linear'][
      'w'
    ].shape[1]
    for i in range(2)
  ]
  assert widths == [_F, 20]


@pytest.mark.parametrize(
  'sources, message',
  [
    ((None, 0), 'an entry for each of 5 layers .* got 2'),
    ((None, None, None, 2, 1), r'key_sources\[3\] .* got 2 with a MultiQ'),
    ((None, None, None, 4, 1), r'key_sources\[3\] .* got 4 with a SharedK'),
    ((None, None, None, -5, 1), r'key_sources\[3\] .* earlier layer'),
  ],
)
def test_impossible_sources_are_refused(sources, message):
  layer = _stack(sources=sources).set(name='layer').Instantiate()
  with pytest.raises(ValueError, match=message):
    _declare(layer)


def test_part_of_a_stack_has_its_sources():
  part = stack_configs.layers_of(_stack(), 1, 3)
  assert part.key_sources == [None, None]
  with pytest.raises(ValueError, match='layers 1 to 3 must be among them'):
    stack_configs.layers_of(_stack(), 1, 4)
  with pytest.raises(ValueError, match='layers 4 to 4 must be among them'):
    stack_configs.last_layer(_stack())


def test_loops_have_no_inputs_of_layers():
  repeated = transformers.StackedTransformerRepeated.config(
    block=_branches(1), x_times=2
  )
  pipelined = transformers.PipelinedTransformer.config(
    pipeline_stage=_branches(1),
    num_pipeline_stages=2,
    num_pipeline_microbatches=2,
  )
  for config in (repeated, pipelined):
    layer = config.set(name='layer').Instantiate()
    with pytest.raises(ValueError, match='layer_inputs must be None .* loop'):
      _declare(layer, layer_inputs=_layer_inputs())
  layer = _branches().set(name='layer').Instantiate()
  with pytest.raises(ValueError, match='layer_inputs must be given'):
    _declare(layer)
