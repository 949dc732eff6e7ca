# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The parts of video tokenizers against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers.video import enc_dec_3dcnn
from tests.praxis.layers.convolutions.numpy_conv import convolve
from tests.praxis.layers.running import build, jit, normal, run

_NORM = pax_fiddle.Config(enc_dec_3dcnn.GroupNormSpatial, num_groups=2)
_ONES = (1, 1, 1)


def _group_norm(x, params=None):
  """Two groups of channels of each frame."""
  x = np.asarray(x, np.float64)
  out = np.empty_like(x)
  half = x.shape[-1] // 2
  for b, t in np.ndindex(*x.shape[:2]):
    for group in (slice(0, half), slice(half, None)):
      part = x[b, t, ..., group]
      out[b, t, ..., group] = (part - part.mean()) / np.sqrt(part.var() + 1e-6)
  if params is None:
    return out
  gamma, beta = (np.ravel(params[k]) for k in ('gamma', 'beta'))
  return out * (1 + gamma) + beta


def _causal(x, params, stride=_ONES):
  """Frames before the first, and borders, are copies."""
  w = np.asarray(params['w'])
  time, *space = w.shape[:3]
  pads = [(time - 1, 0), *(((k - 1) // 2, k // 2) for k in space)]
  x = np.pad(np.asarray(x), [(0, 0), *pads, (0, 0)], mode='edge')
  y = convolve(x, w, stride, _ONES, [(0, 0)] * 3)
  return y + np.asarray(params.get('b', 0))


def _swish(x):
  return x / (1 + np.exp(-x))


def test_frames_are_normalized_one_by_one():
  x = normal(2, 2, 3, 3, 4)
  layer, variables = build(_NORM.clone().set(dim=4), x)
  want = _group_norm(x, variables['params'])
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)
  one_frame = run(layer, variables, x[:, 1:])
  np.testing.assert_allclose(one_frame[:, 0], want[:, 1], atol=1e-5)


def test_embedding_steers_the_norm():
  x, emb = normal(1, 2, 3, 3, 4), normal(1, 2, 3, 3, 3, seed=2)
  cfg = enc_dec_3dcnn.CondNormLayer.config(
    group_norm_tpl=_NORM.clone(), emb_dim=3, dim=4
  )
  layer, variables = build(cfg, x, emb)
  p = jax.tree.map(np.asarray, variables['params'])
  affine = lambda k: emb @ p[f'{k}_linear']['w'] + p[f'{k}_bias']['b']
  want = _group_norm(x) * (1 + affine('gamma')) + affine('beta')
  np.testing.assert_allclose(run(layer, variables, x, emb), want, atol=1e-5)


def test_causal_conv():
  x = normal(1, 3, 4, 3, 2)
  cfg = enc_dec_3dcnn.CausalConv.config(
    filter_shape=(3, 4, 2, 2, 3), filter_stride=(1, 2, 1)
  )
  layer, variables = build(cfg, x)
  want = _causal(x, variables['params'], (1, 2, 1))
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)


@pytest.mark.parametrize('output_dim', [4, 2])
def test_res_block(output_dim):
  x = normal(1, 2, 3, 3, 4)
  cfg = enc_dec_3dcnn.ResBlock.config(
    input_dim=4, output_dim=output_dim, norm_layer_tpl=_NORM.clone()
  )
  layer, variables = build(cfg, x)
  p = variables['params']

  def twin(x):
    y = _causal(_swish(_group_norm(x, p['norm_0'])), p['conv_0'])
    y = _causal(_swish(_group_norm(y, p['norm_1'])), p['conv_1'])
    return y + (_causal(x, p['conv_shortcut']) if output_dim != 4 else x)

  mark = np.asarray(normal(1, 2, 3, 3, output_dim, seed=2))
  value = lambda x: jnp.sum(layer.apply(variables, x) * mark)
  got, grad = jit(lambda x: (layer.apply(variables, x), jax.grad(value)(x)))(x)
  x = np.asarray(x, np.float64)
  np.testing.assert_allclose(got, twin(x), atol=1e-4)
  step = np.zeros(x.shape)
  step[0, 0, 1, 2, 3] = 1e-6
  want = np.sum((twin(x + step) - twin(x - step)) * mark) / 2e-6
  np.testing.assert_allclose(grad[0, 0, 1, 2, 3], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize('size', [2, 3, 4, 7])
def test_blur(size):
  x = normal(1, 2, 3, 4, 2)
  cfg = enc_dec_3dcnn.BlurPool3D.config(filter_size=size)
  layer, variables = build(cfg, x)
  row = np.asarray([1.0])
  for _ in range(size - 1):
    row = np.convolve(row, [0.5, 0.5])
  w = np.einsum('i,j,k->ijk', row, row, row)[..., None, None]
  w = np.tile(w, [1, 1, 1, 1, 2])
  # SAME of TensorFlow: for sizes 2, 3, 4 two places each, one for time.
  pads = []
  for length in x.shape[1:4]:
    total = max((-(-length // 2) - 1) * 2 + size - length, 0)
    pads.append((total // 2, total - total // 2))
  want = convolve(x, w, (2, 2, 2), _ONES, pads, groups=2)
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)
  if size == 3:
    rounded = run(layer, variables, x.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded, want, atol=0.02)


def test_discriminator_block():
  x = normal(1, 2, 4, 4, 2)
  cfg = enc_dec_3dcnn.DiscriminatorResBlock.config(input_dim=2, output_dim=3)
  layer, variables = build(cfg, x)
  p = variables['params']
  same_padding = lambda k: [((k - 1) // 2, k // 2)] * 3
  conv = lambda x, q: (
    convolve(x, q['w'], _ONES, _ONES, same_padding(q['w'].shape[0]))
    + np.asarray(q.get('b', 0))
  )
  leaky = lambda x: np.where(x > 0, x, 0.01 * x)
  pool = enc_dec_3dcnn.BlurPool3D.config(name='pool').Instantiate()
  blur = lambda x: np.asarray(pool.apply({}, jnp.asarray(x, jnp.float32)))
  y = leaky(conv(blur(leaky(conv(x, p['conv_first']))), p['conv_last']))
  want = (y + conv(blur(x), p['conv_residual'])) / np.sqrt(2)
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-4)
  assert 'b' not in p['conv_residual']


def test_channels_become_time_and_space():
  x = np.arange(2 * 3 * 4 * 16.0).reshape(1, 2, 3, 4, 16)
  got = enc_dec_3dcnn.depth_to_space(jnp.asarray(x), 2, 2)
  assert got.shape == (1, 4, 6, 8, 2)
  for t, h, w, f in np.ndindex(4, 6, 8, 2):
    channel = ((t % 2 * 2 + h % 2) * 2 + w % 2) * 2 + f
    assert got[0, t, h, w, f] == x[0, t // 2, h // 2, w // 2, channel]


def test_function_over_slices():
  x = normal(2, 3, 2)
  sizes = []

  def fn(x, y):
    sizes.append(x.shape)
    return jnp.concatenate([x, 2 * y], axis=1), {'sum': x.sum(1, keepdims=True)}

  got, tree = enc_dec_3dcnn.scan_function(fn, in_axis=1)(x, x)
  assert set(sizes) == {(2, 1, 2)}
  want = np.stack([x, 2 * x], axis=2).reshape(2, 6, 2)
  np.testing.assert_allclose(got, want)
  np.testing.assert_allclose(tree['sum'], x)
  with pytest.raises(ValueError, match='in_axis must be below the rank 3'):
    enc_dec_3dcnn.scan_function(fn, in_axis=3)(x, x)


def test_bad_settings():
  x = normal(1, 2, 3, 3, 4)
  with pytest.raises(ValueError, match='filter_size must be 2 to 7, got 8'):
    build(enc_dec_3dcnn.BlurPool3D.config(filter_size=8), x)
  for cls in (enc_dec_3dcnn.ResBlock, enc_dec_3dcnn.DiscriminatorResBlock):
    fields = (
      {'norm_layer_tpl': _NORM.clone()} if cls.__name__ == 'ResBlock' else {}
    )
    with pytest.raises(ValueError, match='must have 2 channels'):
      build(cls.config(input_dim=2, output_dim=2, **fields), x)
