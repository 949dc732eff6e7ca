# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Gated DeltaNet: chunks, steps and packed segments against numpy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, gated_delta_net, transformers
from praxis.layers.attentions import segments
from praxis.layers.ssm import gated_delta_rule
from praxis.layers.transformer_models import stack_configs
from tests.praxis.layers import recurrent_layers as layers
from tests.praxis.layers import running
from tests.praxis.layers.models import decoding
from tests.testing import nightly

_B, _T, _D = layers.BATCH, layers.LENGTH, layers.DIM
_KEY_HEADS, _VALUE_HEADS, _H, _V = 2, 4, 3, 5
_POSITIONS = jnp.array(
  [[0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2]]
)


def _config(**kwargs):
  fields = {
    'input_dim': _D,
    'num_key_heads': _KEY_HEADS,
    'num_value_heads': _VALUE_HEADS,
    'key_head_dim': _H,
    'value_head_dim': _V,
    'chunk_size': 4,
    **kwargs,
  }
  return gated_delta_net.GatedDeltaNet.config(**fields)


@functools.cache
def _build(**kwargs):
  return layers.BuiltLayer(_config(**kwargs))


def _delta_rule_by_hand(query, key, value, log_decay, strength, is_start):
  """The recurrence of the paper with its transition matrix, in float64."""
  out = np.zeros(value.shape)
  batch, length, heads, dim = key.shape
  for b, n in np.ndindex(batch, heads):
    state = np.zeros((value.shape[-1], dim))
    for t in range(length):
      if is_start[b, t]:
        state = np.zeros_like(state)
      k, beta = key[b, t, n], strength[b, t, n]
      transition = np.eye(dim) - beta * np.outer(k, k)
      state = np.exp(log_decay[b, t, n]) * state @ transition
      state += beta * np.outer(value[b, t, n], k)
      out[b, t, n] = state @ query[b, t, n]
  return out


def _layer_by_hand(params, x, is_start):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  heads = lambda name: np.einsum('btd,dnh->btnh', x, p[name]['w'])
  query, key, value = (
    layers.silu(
      layers.convolution_by_hand(heads(name), p[f'{name}_conv'], is_start)
    )
    for name in ('query', 'key', 'value')
  )
  unit = lambda y: y / np.sqrt(np.sum(y**2, -1, keepdims=True) + 1e-6)
  times = x @ p['decay']['w'] + p['dt_bias']
  groups = np.arange(_VALUE_HEADS) * _KEY_HEADS // _VALUE_HEADS
  out = _delta_rule_by_hand(
    unit(query)[:, :, groups] / np.sqrt(_H),
    unit(key)[:, :, groups],
    value,
    -np.exp(p['a_log']) * np.log1p(np.exp(times)),
    1 / (1 + np.exp(-(x @ p['strength']['w']))),
    is_start,
  )
  out /= np.sqrt(np.mean(out**2, -1, keepdims=True) + 1e-6)
  out *= p['norm']['scale'] * layers.silu(heads('output_gate'))
  return np.einsum('btnv,dnv->btd', out, p['post']['w'])


@pytest.mark.parametrize('chunk_size', [4, 64, *nightly.cases(1, 11)])
def test_layer(chunk_size):
  x = layers.inputs()
  built = _build(chunk_size=chunk_size)
  out, _ = built(x)
  want = _layer_by_hand(
    built.variables['params'], np.asarray(x), layers.first_steps()
  )
  np.testing.assert_allclose(out, want, atol=2e-5)


def _mask(kind):
  if kind == 'segments':
    dtype = np.dtype('float32')
    return segments.SegmentMask(layers.SEGMENTS, is_causal=True, dtype=dtype)
  return attentions.causal_segment_mask(layers.SEGMENTS)


@pytest.mark.parametrize('kind', ['segments', 'array'])
def test_segments_are_apart(kind):
  x = layers.inputs()
  built = _build()
  out, _ = built(x, _mask(kind), _POSITIONS)
  is_start = layers.starts_of_segments()
  want = _layer_by_hand(built.variables['params'], np.asarray(x), is_start)
  np.testing.assert_allclose(out, want, atol=2e-5)
  # A segment alone has the same outputs.
  alone, _ = built(x[:1, 4:])
  np.testing.assert_allclose(out[:1, 4:], alone, atol=2e-5)


def test_padded_steps_start_segments():
  x = layers.inputs(1)
  built = _build()
  paddings = (jnp.arange(_T) < 4).astype(jnp.float32)[jnp.newaxis]
  mask = attentions.merge_masks(
    attentions.causal_mask(x), attentions.convert_paddings_to_mask(paddings)
  )
  out, _ = built(x, mask)
  alone, _ = built(x[:, 4:])
  np.testing.assert_allclose(out[:, 4:], alone, atol=2e-5)


def _steps(batch=1, length=9, heads=2, dim=3, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=(batch, length, *shape))
  key = draw(heads, dim)
  key /= np.linalg.norm(key, axis=-1, keepdims=True)
  return (
    draw(heads, dim),
    key,
    draw(heads, 4),
    -np.abs(draw(heads)),
    1 / (1 + np.exp(draw(heads))),
    rng.random((batch, length)) < 0.2,
  )


def _delta_steps(arrays):
  names = 'query', 'key', 'value', 'log_decay', 'strength', 'is_start'
  arrays = map(jnp.asarray, arrays)
  return gated_delta_rule.Steps(**dict(zip(names, arrays, strict=True)))


def _chunked(steps, state=None, chunk_size=4):
  if not isinstance(steps, gated_delta_rule.Steps):
    steps = _delta_steps(steps)
  if state is None:
    state = steps.zero_state()
  return steps.chunked(state, chunk_size)


_compiled = running.jit(_chunked, static_argnames='chunk_size')


@pytest.mark.parametrize('length', [1, 9, *nightly.cases(4, 5)])
def test_chunks_are_the_recurrence(length):
  steps = _steps(length=length)
  out, state = _compiled(tuple(map(jnp.asarray, steps)))
  np.testing.assert_allclose(out, _delta_rule_by_hand(*steps), atol=1e-5)
  steps = _delta_steps(steps)
  by_steps, before, update = running.jit(gated_delta_rule.Steps.recurrent)(
    steps, jnp.ones_like(state), steps.no_update()
  )
  first = int(np.argmax(np.append(steps.is_start[0], True)))
  np.testing.assert_allclose(by_steps[:, first:], out[:, first:], atol=1e-5)
  if first < length:
    np.testing.assert_allclose(update.apply(before), state, atol=1e-5)


def test_chunks_continue_a_state():
  steps = _delta_steps([*_steps(length=10)[:5], np.zeros((1, 10), bool)])
  whole, last = _compiled(steps)
  _, state = _compiled(steps.span(0, 3))
  rest, state = _compiled(steps.span(3), state)
  np.testing.assert_allclose(rest, whole[:, 3:], atol=1e-5)
  np.testing.assert_allclose(state, last, atol=1e-5)


def test_no_solver_waits_for_threads():
  # LAPACK's solves of batches block each other on CPUs with few cores.
  steps = tuple(map(jnp.asarray, _steps(length=64)))
  gradients = jax.grad(lambda x: jnp.sum(_chunked(x)[0] ** 2), allow_int=True)
  assert 'lapack' not in jax.jit(gradients).lower(steps).as_text()


def test_equal_keys_have_an_exact_inverse():
  # Powers of this matrix have elements of 10^17.
  steps = list(_steps(length=64))
  steps[1] = np.broadcast_to(steps[1][:, :1], steps[1].shape)
  steps[3], steps[4] = np.zeros_like(steps[3]), np.ones_like(steps[4])
  steps[5] = np.zeros_like(steps[5])
  out, _ = _compiled(tuple(map(jnp.asarray, steps)), chunk_size=64)
  np.testing.assert_allclose(out, _delta_rule_by_hand(*steps), atol=1e-5)


def test_strong_decays_do_not_overflow():
  steps = list(_steps(length=64))
  steps[3] *= 100
  out, _ = _compiled(tuple(map(jnp.asarray, steps)), chunk_size=64)
  np.testing.assert_allclose(out, _delta_rule_by_hand(*steps), atol=1e-4)
  loss = lambda x: jnp.sum(_chunked(x, chunk_size=64)[0] ** 2)
  gradients = running.jit(jax.grad(loss, allow_int=True))(
    tuple(map(jnp.asarray, steps))
  )
  assert all(np.isfinite(x).all() for x in gradients[:5])


def test_small_decays_after_large_ones_are_exact():
  steps = list(_steps(length=64))
  steps[3] = np.where(np.arange(64) < 32, -100.0, -1e-3)[np.newaxis, :, None]
  steps[3] = np.broadcast_to(steps[3], steps[4].shape)
  steps[5] = np.zeros_like(steps[5])
  out, _ = _compiled(tuple(map(jnp.asarray, steps)), chunk_size=64)
  want = _delta_rule_by_hand(*steps)
  np.testing.assert_allclose(out, want, atol=3e-6 * np.abs(want).max())


def test_gradients_are_those_of_the_recurrence():
  *steps, is_start = _steps(seed=1)
  weights = np.random.default_rng(2).normal(size=steps[2].shape)

  def loss(steps):
    return jnp.sum(_chunked((*steps, jnp.asarray(is_start)))[0] * weights)

  gradients = running.jit(jax.grad(loss))([*map(jnp.asarray, steps)])
  for index, got in enumerate(gradients):
    want = np.zeros(got.shape)
    for position in np.ndindex(got.shape):
      change = np.zeros(got.shape)
      change[position] = 1e-5
      high, low = (
        np.sum(
          _delta_rule_by_hand(
            *steps[:index],
            steps[index] + sign * change,
            *steps[index + 1 :],
            is_start,
          )
          * weights
        )
        for sign in (1, -1)
      )
      want[position] = (high - low) / 2e-5
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
  ('num_steps', 'reads_again'),
  [(1, True), (3, False), *nightly.cases((1, False), (3, True))],
)
def test_decode_steps_are_the_forward_pass(reads_again, num_steps):
  x = layers.inputs()
  built = _build()
  want, _ = built(x)
  prompt = x[:, :5]
  if reads_again:
    # The first step replaces the last one of the prompt, whatever that was.
    prompt = prompt.at[:, 4].add(1.0)
  _, cache = built(prompt)
  for first in range(4 if reads_again else 5, _T, num_steps):
    part = x[:, first : first + num_steps]
    inputs = part[:, 0] if num_steps == 1 else part
    out, cache = built.step({**built.variables, **cache}, inputs, first, None)
    out = np.asarray(out).reshape(part.shape)
    np.testing.assert_allclose(
      out, want[:, first : first + num_steps], atol=2e-5
    )


def test_prompts_after_padding_decode_as_alone():
  x = layers.inputs()
  built = _build()
  lengths = np.array([5, 2])
  ids = jnp.asarray(np.arange(5) >= 5 - lengths[:, np.newaxis], jnp.int32)
  prompt = jnp.zeros((_B, 5, _D)) + 3.0
  for b, length in enumerate(lengths):
    prompt = prompt.at[b, 5 - length :].set(x[b, :length])
  mask = attentions.causal_segment_mask(ids)
  pos = jnp.maximum(np.arange(5) - 5 + lengths[:, np.newaxis], 0)
  _, cache = built(prompt, mask, pos)
  want, _ = built(x)
  for i in range(4):
    pos = jnp.asarray(lengths - 1 + i)
    inputs = x[np.arange(_B), pos]
    out, cache = built.step({**built.variables, **cache}, inputs, 4 + i, pos)
    np.testing.assert_allclose(out, want[np.arange(_B), pos], atol=2e-5)


def test_a_prompt_of_one_step():
  x = layers.inputs()
  built = _build()
  want, _ = built(x)
  out, cache = built(x[:, :1])
  np.testing.assert_allclose(out, want[:, :1], atol=2e-5 * np.abs(want).max())
  out, _ = built.step({**built.variables, **cache}, x[:, 1], 1, None)
  np.testing.assert_allclose(out, want[:, 1], atol=2e-5 * np.abs(want).max())


def test_an_empty_prompt_starts_from_zero():
  x = layers.inputs()
  built = _build()
  want, cache = built(x)
  for pos in (-1, 0, 1):
    out, cache = built.step(
      {**built.variables, **cache},
      x[:, max(pos, 0)],
      _T + pos,
      jnp.full(_B, pos),
    )
    np.testing.assert_allclose(out, want[:, max(pos, 0)], atol=2e-5)


def test_samples_copy_the_state():
  x = layers.inputs()
  built = _build()
  layer, variables = built.layer, built.variables
  _, cache = built(x[:, :5])
  rows = jnp.repeat(x[:, 5], 3, axis=0)
  with pytest.raises(ValueError, match='must have 2 rows as the .* got 6'):
    layer.apply({**variables, **cache}, rows, 5, None, method=layers.step)
  _, copied = layer.apply(
    {**variables, **cache},
    3,
    4,
    method='lazy_broadcast_prefix',
    mutable=layers.CACHE,
  )
  out, _ = built.step({**variables, **copied}, rows, 5, None)
  want, _ = built.step({**variables, **cache}, x[:, 5], 5, None)
  np.testing.assert_allclose(out, jnp.repeat(want, 3, axis=0), atol=1e-6)


def test_decays_are_computed_in_float32():
  x = layers.inputs()
  built = _build(fprop_dtype=jnp.bfloat16)
  # As in training, without a cache.
  out = running.run(
    built.layer,
    built.variables,
    x.astype(jnp.bfloat16),
    attentions.causal_mask(x),
    method=layers.call,
  )
  want = _layer_by_hand(
    built.variables['params'], np.asarray(x), layers.first_steps()
  )
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(out, want, atol=0.03 * np.abs(want).max())


def test_variables_and_their_sharding():
  x = layers.inputs()
  config = _config(ici_mesh_shape=[1, 1], mesh_axis_names=['data', 'mdl'])
  config.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  config.weight_split_dims_mapping.dconv = ['mdl', None]
  layer = config.set(name='layer').Instantiate()
  mask = attentions.causal_mask(x)
  hparams = layer.abstract_init_with_metadata(x, x, x, mask)['params']
  found = {
    '/'.join(str(key.key) for key in path): (
      tuple(p.shape),
      tuple(p.tensor_split_dims_mapping),
    )
    for path, p in jax.tree_util.tree_leaves_with_path(
      hparams, is_leaf=lambda p: isinstance(p, base_layer.WeightHParams)
    )
    if 'conv' not in str(path) or 'dconv_0' in str(path)
  }
  keys, values = (_KEY_HEADS, _H), (_VALUE_HEADS, _V)
  heads = ('data', 'mdl', None)
  assert found == {
    'query/w': ((_D, *keys), heads),
    'key/w': ((_D, *keys), heads),
    'value/w': ((_D, *values), heads),
    'output_gate/w': ((_D, *values), heads),
    'post/w': ((_D, *values), heads),
    'query_conv/dconv_0': (keys, ('mdl', None)),
    'key_conv/dconv_0': (keys, ('mdl', None)),
    'value_conv/dconv_0': (values, ('mdl', None)),
    'strength/w': ((_D, _VALUE_HEADS), ('data', 'mdl')),
    'decay/w': ((_D, _VALUE_HEADS), ('data', 'mdl')),
    'a_log': ((_VALUE_HEADS,), ('mdl',)),
    'dt_bias': ((_VALUE_HEADS,), ('mdl',)),
    'norm/scale': ((_V,), (-1,)),
  }


def test_sharding_of_a_model_reaches_it():
  config = decoding.config('hybrid sharded')
  batch = decoding.batch()
  layer = config.set(name='model').Instantiate()
  params = layer.abstract_init_with_metadata(batch)['params']
  mixer = params['lm']['transformer']['x_layers_0']['self_attention']
  assert mixer['query']['w'].tensor_split_dims_mapping == ['data', 'mdl', None]
  assert mixer['post']['w'].tensor_split_dims_mapping == ['data', 'mdl', None]
  assert mixer['decay']['w'].tensor_split_dims_mapping == ['data', 'mdl']
  assert mixer['a_log'].tensor_split_dims_mapping == ['mdl']


def test_kernels_of_other_layers_take_segments():
  stack = decoding.config('hybrid').lm_tpl.stacked_transformer_tpl
  attention = stack.transformer_layer_params_tpl[1].tr_atten_tpl
  for implementation, takes_segments in (('splash', True), ('xla', False)):
    attention.atten_implementation = implementation
    assert stack_configs.may_use_kernels(stack, 256) == takes_segments


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'num_key_heads': 3}, 'num_key_heads must divide num_value_heads=4'),
    ({'chunk_size': 0}, 'needs chunk_size > 0'),
    ({'key_head_dim': None}, 'their dimensions must be at least 1'),
  ],
)
def test_wrong_fields(fields, message):
  with pytest.raises(ValueError, match=message):
    _build(**fields)


def test_wrong_calls():
  x = layers.inputs()
  layer, variables = _build().layer, _build().variables
  mask = attentions.causal_mask(x)
  with pytest.raises(ValueError, match='must be the same array'):
    layer.apply(variables, x, x + 1, x, mask)
  with pytest.raises(ValueError, match='must be causal'):
    layer.apply(
      variables,
      *(x, x, x),
      segments.SegmentMask(layers.SEGMENTS, False, np.dtype('float32')),
    )
  with pytest.raises(ValueError, match='flat beam search; use'):
    layer.apply(
      variables, prefill=True, sequential=False, method='check_decoding'
    )


def test_in_a_stack_with_attention():
  # The layer without a cache of steps comes first.
  stack = pax_fiddle.Config(
    transformers.StackedTransformer,
    num_layers=2,
    model_dims=_D,
    hidden_dims=_D,
    num_heads=2,
    mask_self_attention=True,
    transformer_layer_params_tpl=[
      pax_fiddle.Config(transformers.Transformer, tr_atten_tpl=_config()),
      pax_fiddle.Config(transformers.Transformer),
    ],
  )
  x, paddings = layers.inputs(), jnp.zeros((_B, _T))
  layer, variables = running.build(stack, x, paddings)
  want, cache = running.run(layer, variables, x, paddings, mutable=layers.CACHE)
  step = running.compiled(
    layer,
    method=lambda layer, x, t: layer.extend_step(x, time_step=t),
    mutable=layers.CACHE,
  )
  _, cache = running.run(
    layer, variables, x[:, :4], paddings[:, :4], mutable=layers.CACHE
  )
  grow = lambda x, _, time_dim: (
    x if time_dim < 0 else jnp.pad(x, [(0, 0), (0, _T - 4), (0, 0), (0, 0)])
  )
  _, cache = running.run(
    layer,
    {**variables, **cache},
    method=lambda layer: layer.transform_decode_state(grow),
    mutable=layers.CACHE,
  )
  for t in range(3, _T):
    out, cache = step({**variables, **cache}, x[:, t], t)
    np.testing.assert_allclose(out, want[:, t], atol=5e-5)
