# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Mamba-2: chunks, steps and packed segments against numpy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions, mamba2
from praxis.layers.attentions import segments
from praxis.layers.ssm import state_space_dual
from tests.praxis.layers import recurrent_layers as layers
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D = layers.BATCH, layers.LENGTH, layers.DIM
_GROUPS, _HEADS, _STATE, _V, _KERNEL = 2, 4, 3, 5, 3


def _config(**kwargs):
  fields = {
    'input_dim': _D,
    'num_key_heads': _GROUPS,
    'num_value_heads': _HEADS,
    'key_head_dim': _STATE,
    'value_head_dim': _V,
    'conv_kernel_size': _KERNEL,
    'chunk_size': 4,
    **kwargs,
  }
  return mamba2.Mamba2.config(**fields)


@functools.cache
def _build(**kwargs):
  return layers.BuiltLayer(_config(**kwargs))


def _recurrence_by_hand(query, key, value, log_decay, direct, is_start):
  """The recurrence of each head, in float64."""
  out = np.zeros(value.shape)
  batch, length, heads, _ = value.shape
  for b, n in np.ndindex(batch, heads):
    group = n * key.shape[2] // heads
    state = np.zeros((key.shape[-1], value.shape[-1]))
    for t in range(length):
      if is_start[b, t]:
        state = np.zeros_like(state)
      state = np.exp(log_decay[b, t, n]) * state
      state += np.outer(key[b, t, group], value[b, t, n])
      out[b, t, n] = query[b, t, group] @ state + direct[b, t, n]
  return out


def _layer_by_hand(params, x, is_start, limits=(0.0, np.inf)):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  heads = lambda name: np.einsum('btd,dnh->btnh', x, p[name]['w'])
  query, key, value = (
    layers.silu(
      layers.convolution_by_hand(heads(name), p[f'{name}_conv'], is_start)
    )
    for name in ('query', 'key', 'value')
  )
  times = np.log1p(np.exp(x @ p['decay']['w'] + p['dt_bias']))
  times = np.clip(times, *limits)
  out = _recurrence_by_hand(
    query,
    key,
    value * times[..., np.newaxis],
    -np.exp(p['a_log']) * times,
    value * p['skip'][:, np.newaxis],
    is_start,
  )
  out *= layers.silu(heads('output_gate'))
  parts = out.reshape(*out.shape[:2], p['key']['w'].shape[1], -1)
  parts /= np.sqrt(np.mean(parts**2, -1, keepdims=True) + 1e-6)
  normed = parts.reshape(*out.shape[:2], -1) * p['norm']['scale']
  return np.einsum('btnv,dnv->btd', normed.reshape(out.shape), p['post']['w'])


@pytest.mark.parametrize(
  ('fields', 'by_hand'),
  [
    ({}, {}),
    (
      {'num_key_heads': 1, 'time_step_limits': (0.3, 0.9), 'chunk_size': 64},
      {'limits': (0.3, 0.9)},
    ),
    *nightly.cases(({'chunk_size': 1}, {}), ({'chunk_size': 11}, {})),
  ],
)
def test_layer(fields, by_hand):
  x = layers.inputs()
  built = _build(**fields)
  out, _ = built(x)
  params = built.variables['params']
  want = _layer_by_hand(params, np.asarray(x), layers.first_steps(), **by_hand)
  np.testing.assert_allclose(out, want, atol=2e-5 * np.abs(want).max())


def test_segments_are_apart():
  x = layers.inputs()
  built = _build()
  dtype = np.dtype('float32')
  out, _ = built(x, segments.SegmentMask(layers.SEGMENTS, True, dtype))
  is_start = layers.starts_of_segments()
  want = _layer_by_hand(built.variables['params'], np.asarray(x), is_start)
  np.testing.assert_allclose(out, want, atol=2e-5 * np.abs(want).max())


def _steps(length=9, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=(2, length, *shape))
  return {
    'query': draw(_GROUPS, _STATE),
    'key': draw(_GROUPS, _STATE),
    'value': draw(_HEADS, _V),
    'log_decay': -np.abs(draw(_HEADS)),
    'direct': draw(_HEADS, _V),
    'is_start': rng.random((2, length)) < 0.2,
  }


def _chunked(arrays, state=None):
  steps = state_space_dual.Steps(**jax.tree.map(jnp.asarray, arrays))
  state = steps.zero_state() if state is None else state
  return steps.chunked(state, 4)


_compiled = running.jit(_chunked)


def test_chunks_continue_a_state():
  arrays = _steps(length=10)
  arrays['is_start'] = np.zeros((2, 10), bool)
  part = lambda first, end=None: {k: x[:, first:end] for k, x in arrays.items()}
  whole, last = _compiled(arrays)
  _, state = _compiled(part(0, 3))
  rest, state = _compiled(part(3), state)
  np.testing.assert_allclose(rest, whole[:, 3:], atol=1e-5)
  np.testing.assert_allclose(state, last, atol=1e-5)


def test_gradients_are_those_of_the_recurrence():
  arrays = _steps(length=6, seed=1)
  is_start = arrays.pop('is_start')
  weights = np.random.default_rng(2).normal(size=arrays['value'].shape)

  def loss(arrays):
    return jnp.sum(_chunked({**arrays, 'is_start': is_start})[0] * weights)

  gradients = running.jit(jax.grad(loss))(jax.tree.map(jnp.asarray, arrays))
  for name, got in gradients.items():
    want = np.zeros(got.shape)
    for position in np.ndindex(got.shape):
      change = np.zeros(got.shape)
      change[position] = 1e-5
      high, low = (
        np.sum(
          _recurrence_by_hand(
            **{**arrays, name: arrays[name] + sign * change},
            is_start=is_start,
          )
          * weights
        )
        for sign in (1, -1)
      )
      want[position] = (high - low) / 2e-5
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize('num_steps', [1, 3])
def test_decode_steps_are_the_forward_pass(num_steps):
  x = layers.inputs()
  built = _build()
  want, _ = built(x)
  # The first step replaces the last one of the prompt.
  _, cache = built(x[:, :5].at[:, 4].add(1.0))
  for first in range(4, _T, num_steps):
    part = x[:, first : first + num_steps]
    inputs = part[:, 0] if num_steps == 1 else part
    out, cache = built.step({**built.variables, **cache}, inputs, first)
    np.testing.assert_allclose(
      np.asarray(out).reshape(part.shape),
      want[:, first : first + num_steps],
      atol=2e-5 * np.abs(want).max(),
    )


def test_a_prompt_of_one_step():
  x = layers.inputs()
  built = _build()
  want, _ = built(x)
  out, cache = built(x[:, :1])
  np.testing.assert_allclose(out, want[:, :1], atol=2e-5 * np.abs(want).max())
  out, _ = built.step({**built.variables, **cache}, x[:, 1], 1)
  np.testing.assert_allclose(out, want[:, 1], atol=2e-5 * np.abs(want).max())


def test_states_are_computed_in_float32():
  x = layers.inputs()
  built = _build(fprop_dtype=jnp.bfloat16)
  mask = attentions.causal_mask(x)
  out, cache = built(x.astype(jnp.bfloat16), mask)
  params = built.variables['params']
  want = _layer_by_hand(params, np.asarray(x), layers.first_steps())
  assert out.dtype == jnp.bfloat16
  assert cache[base_layer.DECODE_CACHE]['state'].dtype == jnp.float32
  np.testing.assert_allclose(out, want, atol=0.03 * np.abs(want).max())


def test_wrong_fields():
  with pytest.raises(ValueError, match='must divide num_value_heads=4, got 3'):
    _build(num_key_heads=3)
