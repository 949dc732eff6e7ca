# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Positional embeddings against their formulas."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import embedding_softmax as es
from tests.praxis.layers import running


def _sinusoid(position, dims, shortest=1, longest=10_000):
  n = dims // 2
  out = np.zeros((*np.shape(position), dims))
  for i in range(n):
    timescale = (longest / shortest) ** (i / max(n - 1, 1)) / shortest
    out[..., i] = np.sin(np.asarray(position) / timescale)
    out[..., n + i] = np.cos(np.asarray(position) / timescale)
  return out


def _call(layer, variables=None, **kwargs):
  return running.jit(lambda v: layer.apply(v, **kwargs))(variables or {})


@pytest.mark.parametrize('dims', [2, 6, 7])
def test_sinusoids(dims):
  layer = es.PositionalEmbedding.config(embedding_dims=dims).Instantiate()
  y = _call(layer, seq_length=5)
  np.testing.assert_allclose(y, _sinusoid(np.arange(5)[None], dims), atol=1e-5)
  position = jnp.asarray([[3, 0, 9], [1, 1, 400]])
  y = _call(layer, position=position)
  np.testing.assert_allclose(y, _sinusoid(position, dims), atol=1e-4)


def test_sinusoids_have_fprop_dtype_and_timescales():
  cfg = es.PositionalEmbedding.config(
    embedding_dims=4, min_timescale=2, max_timescale=32
  )
  want = _sinusoid(np.arange(3)[None], 4, 2, 32)
  y = _call(cfg.Instantiate(), seq_length=3)
  np.testing.assert_allclose(y, want, atol=1e-6)
  cfg.fprop_dtype = jnp.bfloat16
  assert cfg.Instantiate().apply({}, seq_length=3).dtype == jnp.bfloat16


def test_length_or_position_is_required():
  with pytest.raises(ValueError, match='needs seq_length or position'):
    es.PositionalEmbedding.config(embedding_dims=4).Instantiate().apply({})


@pytest.mark.parametrize('style', ['matmul', 'index'])
def test_trainable_looks_up_its_table(style):
  cfg = es.TrainablePositionalEmbedding.config(
    embedding_dims=4, max_seq_length=10, lookup_style=style
  )
  layer, variables = running.build(cfg, seq_length=3)
  table = np.asarray(variables['params']['emb_var'])
  assert table.shape == (10, 4)
  y = _call(layer, variables, seq_length=3)
  np.testing.assert_allclose(y, table[None, :3], atol=1e-6)
  position = jnp.asarray([[2, 0, 1], [0, 0, 2]])
  for length in (3, None):
    y = _call(layer, variables, seq_length=length, position=position)
    np.testing.assert_allclose(y, table[np.asarray(position)], atol=1e-6)
  with pytest.raises(ValueError, match='at most max_seq_length 10, got 11'):
    layer.apply(variables, seq_length=11)


def test_trainable_refuses_an_unknown_style():
  cfg = es.TrainablePositionalEmbedding.config(
    embedding_dims=4, lookup_style='gather'
  )
  with pytest.raises(ValueError, match="'index' or 'matmul', got 'gather'"):
    cfg.Instantiate().init(jax.random.key(0), seq_length=3)


@pytest.mark.parametrize('transform', ['hwd->(hw)d', 'hwd->(wh)d'])
def test_2d_encodes_row_and_column_from_the_centre(transform):
  cfg = es.PositionalEmbedding2D.config(
    h=3,
    w=2,
    embedding_dims=8,
    pos_transform=transform,
    num_prepend_cls_tokens=1,
    num_append_cls_tokens=2,
  )
  y = running.run(cfg.Instantiate(), {})
  assert y.shape == (1, 1 + 6 + 2, 8)
  np.testing.assert_array_equal(y[0, [0, 7, 8]], 0)
  # Timescales 1 and 100 of each axis.
  waves = lambda x: [*np.sin([x, x / 100]), *np.cos([x, x / 100])]
  for r in range(3):
    for c in range(2):
      place = r * 2 + c if transform == 'hwd->(hw)d' else c * 3 + r
      want = waves(r - 1.5) + waves(c - 1.0)
      np.testing.assert_allclose(y[0, 1 + place], want, atol=1e-6)


def _apply(layer, *args, method=None):
  return running.jit(functools.partial(layer.apply, {}, method=method))(*args)


def _rotated(x, position, dims, longest=10_000):
  """Rotates with complex numbers: channel i and i + H/2 are one number."""
  half = dims // 2
  x = np.asarray(x, np.float64)
  number = x[..., :half] + 1j * x[..., half:]
  angle = np.asarray(position)[..., None] / longest ** (np.arange(half) / half)
  angle = angle.reshape(angle.shape[:2] + (1,) * (x.ndim - 3) + (half,))
  turned = number * np.exp(1j * angle)
  return np.concatenate([turned.real, turned.imag], axis=-1)


@pytest.mark.parametrize('shape', [(2, 5, 3, 6), (2, 5, 6)])
def test_rotary(shape):
  layer = es.RotaryPositionalEmbedding.config(embedding_dims=6).Instantiate()
  x = running.normal(*shape)
  index = np.broadcast_to(np.arange(5), (2, 5))
  np.testing.assert_allclose(_apply(layer, x), _rotated(x, index, 6), atol=1e-5)
  position = jnp.asarray([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
  y = _apply(layer, x, position)
  np.testing.assert_allclose(y, _rotated(x, position, 6), atol=1e-5)
  # One step at a time, with a position each or one for all.
  step = _apply(layer, x[:, 2], position[:, 2], method='extend_step')
  np.testing.assert_allclose(step, y[:, 2], atol=1e-6)
  step = _apply(layer, x[:, 2], jnp.asarray(2), method='extend_step')
  np.testing.assert_allclose(step, _apply(layer, x)[:, 2], atol=1e-6)


@pytest.mark.parametrize('dims', [None, 4])
@pytest.mark.parametrize('interleaved', [False, True])
def test_rotary_of_the_first_channels_and_of_consecutive_pairs(
  dims, interleaved
):
  layer = es.RotaryPositionalEmbedding.config(
    embedding_dims=10, rotary_dims=dims, interleaved_pairs=interleaved
  ).Instantiate()
  x, first = running.normal(2, 5, 3, 10), dims or 10
  position = jnp.asarray([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
  # The channels of pairs: the first of each, then the second of each.
  channels = np.arange(first)
  if interleaved:
    channels = np.concatenate([channels[::2], channels[1::2]])
  want = np.array(x, np.float64)
  want[..., channels] = _rotated(x[..., channels], position, first)
  y = _apply(layer, x, position)
  np.testing.assert_allclose(y, want, atol=1e-5)
  np.testing.assert_array_equal(y[..., first:], x[..., first:])
  step = _apply(layer, x[:, 2], position[:, 2], method='extend_step')
  np.testing.assert_allclose(step, want[:, 2], atol=1e-5)


def test_only_rotated_channels_are_scaled():
  scaling = es.YarnRotaryScaling.config(attention_factor=2.0)
  layer = es.RotaryPositionalEmbedding.config(
    embedding_dims=6, rotary_dims=4, scaling_tpl=scaling
  ).Instantiate()
  x = running.normal(1, 1, 1, 6)
  np.testing.assert_allclose(
    _apply(layer, x), x * np.array([2, 2, 2, 2, 1, 1]), rtol=1e-6
  )


@pytest.mark.parametrize('dims', [0, 3, 8])
def test_rotary_dims_are_channels_of_the_head(dims):
  cfg = es.RotaryPositionalEmbedding.config(embedding_dims=6, rotary_dims=dims)
  with pytest.raises(ValueError, match=f'at most embedding_dims=6, got {dims}'):
    cfg.Instantiate().apply({}, jnp.ones((1, 2, 1, 6)))


def test_rotary_products_depend_on_distance_only():
  layer = es.RotaryPositionalEmbedding.config(embedding_dims=8).Instantiate()
  q, k = running.normal(2, 1, 2, 1, 8)
  dots = []
  for shift in (0, 5):
    position = jnp.asarray([[3, 7]]) + shift
    turned_q = _apply(layer, q, position)
    turned_k = _apply(layer, k, position)
    dots.append(np.einsum('btnh,bsnh->bts', turned_q, turned_k))
  np.testing.assert_allclose(*dots, atol=1e-4)


def test_rotary_dtype_and_errors():
  cfg = es.RotaryPositionalEmbedding.config(
    embedding_dims=4, fprop_dtype=jnp.bfloat16
  )
  x = jnp.ones((1, 2, 1, 4), jnp.bfloat16)
  assert cfg.Instantiate().apply({}, x).dtype == jnp.bfloat16
  kept = cfg.clone().set(cast_as_fprop_dtype=False).Instantiate()
  assert kept.apply({}, x).dtype == jnp.float32
  with pytest.raises(ValueError, match='must be embedding_dims 4, got'):
    cfg.Instantiate().apply({}, jnp.ones((1, 2, 1, 6)))
  with pytest.raises(ValueError, match='must be even and > 0, got 5'):
    cfg.clone().set(embedding_dims=5).Instantiate().apply({}, x)
