# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The video tokenizer: sizes, causality, its ways in and out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers.video import enc_dec_3dcnn, vqvae
from tests.praxis.layers.running import build, jit, normal, run, shapes

_NORM = pax_fiddle.Config(enc_dec_3dcnn.GroupNormSpatial, num_groups=2)
_SIZES = {
  'filters': 2,
  'num_res_blocks': 1,
  'channel_multipliers': (1, 2),
  'temporal_downsample': (True,),
  'embedding_dim': 4,
}


def _parts():
  norm = {'norm_tpl': _NORM.clone()}
  block = {
    'res_block_tpl': enc_dec_3dcnn.ResBlock.config(norm_layer_tpl=_NORM.clone())
  }
  cond = enc_dec_3dcnn.CondNormLayer.config(group_norm_tpl=_NORM.clone())
  encoder = vqvae.Encoder.config(**norm, **block)
  return encoder, vqvae.Decoder.config(**norm, **block, cond_norm_tpl=cond)


@pytest.fixture(scope='module')
def model():
  """A layer, its variables, two videos of five frames, what methods give.

  The second video is the first but for the last two frames.
  """
  encoder, decoder = _parts()
  cfg = vqvae.VQVaeModel.config(
    encoder_tpl=encoder, decoder_tpl=decoder, **_SIZES
  )
  video = normal(1, 5, 4, 4, 3)
  videos = jnp.concatenate([video, video.at[:, 3:].add(1.0)])
  layer, variables = build(cfg, videos)

  @jit
  def everything(variables, videos):
    call = lambda name, *args: layer.apply(
      variables, *args, method=getattr(layer, name)
    )

    def loss(variables):
      video, result = layer.apply(variables, videos)
      return video.sum(), (video, result)

    grads, whole = jax.grad(loss, has_aux=True)(variables)
    latents = call('encode_to_latents', videos)
    tokens = call('encode_to_indices', videos)
    return {
      'whole': whole,
      'encoded': call('encode', videos)[0],
      'latents': latents,
      'tokens': tokens,
      'from_latents': call('decode_from_latents', latents),
      'from_tokens': call('decode_from_indices', tokens),
      'decoded': call('decode', latents),
      'grads': grads,
    }

  return variables, videos, everything(variables, videos)


def test_sizes(model):
  variables, videos, out = model
  assert out['latents'].shape == (2, 3, 2, 2, 4)
  assert out['tokens'].shape == (2, 3, 2, 2)
  assert out['whole'][0].shape == videos.shape
  sizes = shapes(variables)
  assert sizes['encoder/conv_downsample_layers_0/w'] == (4, 4, 4, 2, 2)
  assert sizes['encoder/res_blocks_1/conv_shortcut/w'] == (1, 1, 1, 2, 4)
  assert sizes['decoder/conv_upsample_layers_0/w'] == (3, 3, 3, 4, 32)
  assert sizes['decoder/cond_norm_layers_1/gamma_linear/w'] == (4, 4)


def test_ways_through_agree(model):
  _, _, out = model
  video, result = out['whole']
  signs = np.where(np.asarray(out['latents']) >= 0, 1, -1)
  np.testing.assert_allclose(out['encoded'], signs, atol=1e-5)
  np.testing.assert_array_equal(result.encoding_indices, out['tokens'])
  np.testing.assert_allclose(out['from_latents'], video, atol=1e-4)
  np.testing.assert_allclose(out['from_tokens'], video, atol=1e-4)
  assert 'quantizer_loss' in result


def test_no_frame_sees_a_later_one(model):
  _, _, out = model
  one, other = out['latents']
  # Latent 0 is of frame 0, latent 1 of frames 1 and 2, latent 2 of 3 and 4.
  np.testing.assert_allclose(one[:2], other[:2], atol=1e-5)
  assert (np.abs(one - other)[2] > 1e-3).any()
  one, other = out['decoded']
  np.testing.assert_allclose(one[:3], other[:3], atol=1e-5)
  for frame in (3, 4):
    assert (np.abs(one - other)[frame] > 1e-3).any()


def test_every_weight_is_trained(model):
  """The gradient goes through the quantizer to the first convolution."""
  variables, _, out = model
  grads = out['grads']
  assert jax.tree.structure(grads) == jax.tree.structure(variables)
  still = [
    jax.tree_util.keystr(path)
    for path, grad in jax.tree_util.tree_flatten_with_path(grads)[0]
    if not (np.abs(grad) > 0).any()
  ]
  assert not still


def test_discriminator():
  x = normal(2, 3, 6, 4, 3)
  cfg = vqvae.Discriminator.config(
    filters=2,
    num_frames=3,
    image_height=6,
    image_width=4,
    channel_multipliers=(1, 2),
    fprop_dtype=jnp.bfloat16,
  )
  layer, variables = build(cfg, x)
  sizes = shapes(variables)
  # 3 x 6 x 4 is 2 x 3 x 2 after a block, 1 x 2 x 1 after two.
  assert sizes['proj/mlp_layers_0/linear/w'] == (4 * 2, 4)
  assert sizes['proj/mlp_layers_1/linear/w'] == (4, 1)
  got = run(layer, variables, x.astype(jnp.bfloat16))
  assert got.shape == (2, 1) and got.dtype == jnp.bfloat16
  with pytest.raises(ValueError, match=r'inputs must be \[B'):
    build(cfg, normal(2, 3, 6, 6, 3))


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'num_res_blocks': 0}, 'num_res_blocks must be at least 1'),
    ({'temporal_downsample': ()}, 'temporal_downsample must have 1 entries'),
    ({'conv_downsample': False}, 'conv_downsample must be True'),
    ({}, r'T = 1 \+ k \* 2 frames'),
  ],
)
def test_bad_settings(fields, message):
  encoder, _ = _parts()
  cfg = encoder.set(**_SIZES | fields)
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(1, 4, 4, 4, 3))
