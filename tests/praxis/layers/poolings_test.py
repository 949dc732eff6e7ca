# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Poolings against loops in numpy; padding counts for nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import poolings
from tests.praxis.layers.running import build, jit, normal, run
from tests.testing import nightly

_PADDINGS = jnp.asarray([[0.0, 0, 0, 0, 0], [0, 0, 0, 1, 1]])


def _starts(length, window, stride, padding):
  """Where windows start; TensorFlow's SAME puts the odd frame after."""
  if padding == 'VALID':
    return range(0, length - window + 1, stride)
  count = -(-length // stride)
  before = max((count - 1) * stride + window - length, 0) // 2
  return range(-before, -before + count * stride, stride)


def _pool(x, paddings, window, stride, kind, padding):
  """Loops over windows of [H, W, D], dropping what is padding or outside."""
  x = np.asarray(x, np.float64)
  rows = _starts(x.shape[0], window[0], stride[0], padding)
  columns = _starts(x.shape[1], window[1], stride[1], padding)
  out = np.zeros((len(rows), len(columns), x.shape[-1]))
  for i, top in enumerate(rows):
    for j, left in enumerate(columns):
      part = [
        x[r, c]
        for r in range(max(top, 0), min(top + window[0], x.shape[0]))
        for c in range(max(left, 0), min(left + window[1], x.shape[1]))
        if not paddings[r]
      ]
      if part:
        out[i, j] = np.max(part, 0) if kind == 'MAX' else np.mean(part, 0)
  return out


def _pool_paddings(paddings, window, stride, padding):
  if stride == 1 and padding == 'SAME':
    return np.asarray(paddings)
  starts = _starts(len(paddings), window, stride, padding)
  return np.asarray([max(paddings[max(s, 0) : s + window]) for s in starts])


@pytest.mark.parametrize(
  ('kind', 'stride', 'padding'),
  [
    ('MAX', (2, 1), 'SAME'),
    ('AVG', (1, 2), 'SAME'),
    ('AVG', (2, 1), 'VALID'),
    *nightly.cases(
      ('AVG', (2, 1), 'SAME'),
      ('MAX', (1, 2), 'SAME'),
      ('MAX', (2, 1), 'VALID'),
    ),
  ],
)
def test_pooling(kind, stride, padding):
  x = normal(2, 5, 4, 3)
  cfg = poolings.Pooling.config(
    window_shape=(3, 2),
    window_stride=stride,
    pooling_type=kind,
    padding=padding,
  )
  layer, variables = build(cfg, x, _PADDINGS)
  got, out_paddings = run(layer, variables, x, _PADDINGS)
  for b in range(2):
    pads = np.asarray(_PADDINGS[b])
    want_paddings = _pool_paddings(pads, 3, stride[0], padding)
    want = _pool(x[b], pads, (3, 2), stride, kind, padding)
    want[want_paddings == 1] = 0
    np.testing.assert_array_equal(out_paddings[b], want_paddings)
    np.testing.assert_allclose(got[b], want, atol=1e-6)
  plain, none = run(layer, variables, x)
  assert none is None
  want = _pool(x[1], np.zeros(5), (3, 2), stride, kind, padding)
  np.testing.assert_allclose(plain[1], want, atol=1e-6)


def test_pooling_gradients():
  x = normal(1, 4, 2, 1)
  for kind in ('MAX', 'AVG'):
    cfg = poolings.Pooling.config(
      window_shape=(2, 2), window_stride=(2, 2), pooling_type=kind
    )
    layer, variables = build(cfg, x)
    loss = lambda x, layer=layer, v=variables: jnp.sum(
      layer.apply(v, x)[0] * jnp.asarray([2.0, 3.0])[None, :, None, None]
    )
    got = jit(jax.grad(loss))(x)[0, ..., 0]
    want = np.zeros((4, 2))
    for i, weight in enumerate((2.0, 3.0)):
      part = np.asarray(x)[0, 2 * i : 2 * i + 2, :, 0]
      share = part == part.max() if kind == 'MAX' else np.full((2, 2), 0.25)
      want[2 * i : 2 * i + 2] = weight * share
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_maximum_of_integers_and_bfloat16():
  cfg = poolings.Pooling.config(window_shape=(2, 2), window_stride=(2, 2))
  x = -jnp.arange(1, 17).reshape(1, 4, 4, 1)
  layer, variables = build(cfg, x)
  for dtype in (jnp.int32, jnp.bfloat16):
    got, _ = run(layer, variables, x.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(
      got[0, ..., 0].astype(jnp.int32), [[-1, -3], [-9, -11]]
    )


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('keepdims', [False, True])
def test_global_pooling(kind, keepdims):
  x = normal(2, 5, 3, 2)
  cfg = poolings.GlobalPooling.config(
    pooling_type=kind, pooling_dims=[1, 2], keepdims=keepdims
  )
  layer, variables = build(cfg, x)
  reduce = np.max if kind == 'MAX' else np.mean
  got = run(layer, variables, x)
  want = reduce(np.asarray(x), axis=(1, 2), keepdims=keepdims)
  np.testing.assert_allclose(got, want, atol=1e-6)
  # Rows are padding as a whole: their columns do not count either.
  padded = run(
    layer, variables, x, compatible_paddings=_PADDINGS[..., None, None]
  )
  want = reduce(np.asarray(x)[1:, :3], axis=(1, 2), keepdims=keepdims)
  np.testing.assert_allclose(padded[1:], want, atol=1e-6)
  np.testing.assert_allclose(padded[:1], got[:1], atol=1e-6)


# Fields, then the window, which is the stride where it is not set.
@pytest.mark.parametrize(
  'fields, window',
  [
    ({'stride': 2}, 2),
    ({'stride': 2, 'window': 3}, 3),
    ({'stride': 1, 'window': 3, 'pooling_type': 'MAX'}, 3),
    ({'stride': 3, 'window': 1}, 1),
    ({}, 1),
  ],
)
def test_pooling_1d(fields, window):
  x = normal(2, 5, 3)
  layer, variables = build(poolings.Pooling1D.config(**fields), x, _PADDINGS)
  got, out_paddings = run(layer, variables, x, _PADDINGS)
  stride, kind = fields.get('stride', 1), fields.get('pooling_type', 'AVG')
  want_paddings = np.asarray(_PADDINGS)[:, ::stride]
  np.testing.assert_array_equal(out_paddings, want_paddings)
  for b in range(2):
    if window == 1:
      want = np.asarray(x)[b, ::stride]
    else:
      column = np.asarray(x)[b][:, None]
      pads = np.asarray(_PADDINGS[b])
      shapes = (window, 1), (stride, 1)
      want = _pool(column, pads, *shapes, kind, 'SAME')[:, 0]
      if kind == 'MAX':
        want[want_paddings[b] == 1] = 0
    np.testing.assert_allclose(got[b], want, atol=1e-6)


@pytest.mark.parametrize(
  'cfg, message',
  [
    (poolings.Pooling.config(), 'window_shape must be two positive'),
    (
      poolings.Pooling.config(window_shape=(2, 2), window_stride=(1,)),
      'window_stride must be two positive',
    ),
    (
      poolings.Pooling.config(
        window_shape=(2, 2), window_stride=(1, 1), pooling_type='SUM'
      ),
      "pooling_type of Pooling 'layer' must be one of .* got 'SUM'",
    ),
    (
      poolings.Pooling.config(
        window_shape=(2, 2), window_stride=(1, 1), padding='FULL'
      ),
      "padding of Pooling 'layer' must be one of .* got 'FULL'",
    ),
    (poolings.GlobalPooling.config(), 'pooling_dims must be a list'),
    (poolings.GlobalPooling.config(pooling_dims=[-1]), 'none negative'),
    (poolings.Pooling1D.config(stride=0), 'stride must be positive'),
  ],
)
def test_bad_settings(cfg, message):
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(2, 5, 4, 3))


def test_average_of_integers_is_float32():
  cfg = poolings.Pooling.config(
    window_shape=(2, 2), window_stride=(1, 1), pooling_type='AVG'
  )
  x = jnp.arange(9).reshape(1, 3, 3, 1)
  layer, variables = build(cfg, x)
  got, _ = run(layer, variables, x)
  assert got.dtype == jnp.float32
  # SAME padding: the windows at the end have two elements or one.
  want = [[2, 3, 3.5], [5, 6, 6.5], [6.5, 7.5, 8]]
  np.testing.assert_array_equal(got[0, ..., 0], want)


@pytest.mark.parametrize(
  'dtype, value',
  [(jnp.uint8, 200), (jnp.float16, 40000), (jnp.bfloat16, 1.1015625)],
)
def test_sums_of_averages_are_float32(dtype, value):
  x = jnp.full([1, 32, 32, 1], value, dtype)
  cfg = poolings.Pooling.config(
    window_shape=(32, 32), window_stride=(32, 32), pooling_type='AVG'
  )
  got, _ = run(*build(cfg, x), x)
  assert got.ravel() == value
  got, _ = run(*build(poolings.Pooling1D.config(stride=32), x), x)
  assert (got == value).all()
  overall = poolings.GlobalPooling.config(pooling_dims=(1, 2))
  layer, variables = build(overall, x)
  paddings = jnp.zeros_like(x)
  got = run(layer, variables, x, compatible_paddings=paddings)
  assert got.ravel() == value
