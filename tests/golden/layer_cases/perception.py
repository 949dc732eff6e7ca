# SPDX-License-Identifier: Apache-2.0
"""Layers for video and sound: tokenizers, quantizers, losses, augmentations."""

from __future__ import annotations

from praxis.layers import (
  augmentations,
  losses,
  quantizer,
  spectrum_augmenter,
)
from praxis.layers.video import enc_dec_3dcnn, vqvae
from praxis.layers.video import losses as video_losses
from praxis.layers.video import quantizer as video_quantizer
from tests.golden.layer_case import case, f32, i32


def _norm():
  return enc_dec_3dcnn.GroupNormSpatial.config(num_groups=2)


def _norms():
  return {
    'norm_tpl': _norm(),
    'res_block_tpl': enc_dec_3dcnn.ResBlock.config(norm_layer_tpl=_norm()),
  }


def _cond_norm(**fields):
  return enc_dec_3dcnn.CondNormLayer.config(group_norm_tpl=_norm(), **fields)


_SIZES = {
  'filters': 2,
  'num_res_blocks': 1,
  'channel_multipliers': (1, 2),
  'temporal_downsample': (True,),
  'embedding_dim': 4,
}
_VIDEO = f32(1, 3, 4, 4, 3)
_SOUND = (f32(2, 6, 4), f32(2, 6))


def _random_quantizer(**fields):
  cfg = quantizer.RandomVectorQuantizer.config(
    latent_dim=4, num_latent_classes=5, **fields
  )
  cfg.weight_split_dims_mapping.vgh = ['data', None, 'mdl']
  return cfg


CASES = {
  'BiTemperedLoss': case(losses.BiTemperedLoss.config(), f32(2, 4), f32(2, 4)),
  'MaskedLmDataAugmenter': case(
    augmentations.MaskedLmDataAugmenter.config(vocab_size=9, mask_token_id=8),
    i32(2, 6),
    f32(2, 6),
  ),
  'TemporalShifting': case(
    augmentations.TemporalShifting.config(shift_range_ms=0.1), *_SOUND
  ),
  'SpectrumAugmenter': case(
    spectrum_augmenter.SpectrumAugmenter.config(), *_SOUND
  ),
  'VectorQuantizer': case(
    quantizer.VectorQuantizer.config(
      latent_dim=4, num_latent_classes=5, num_groups=2, beta=0.3
    ),
    *_SOUND,
  ),
  'RandomVectorQuantizer': case(
    _random_quantizer(num_groups=2, stack_ratio=2), *_SOUND
  ),
  'RandomVectorQuantizer_low_rank': case(
    _random_quantizer(low_rank_codebook=True), *_SOUND
  ),
  'GroupNormSpatial': case(_norm().set(dim=4), f32(1, 2, 3, 3, 4)),
  'CondNormLayer': case(
    _cond_norm(dim=4, emb_dim=3), f32(1, 2, 3, 3, 4), f32(1, 2, 3, 3, 3)
  ),
  'CausalConv': case(
    enc_dec_3dcnn.CausalConv.config(filter_shape=(3, 3, 3, 3, 4)), _VIDEO
  ),
  'ResBlock': case(
    enc_dec_3dcnn.ResBlock.config(
      input_dim=4, output_dim=6, norm_layer_tpl=_norm()
    ),
    f32(1, 2, 3, 3, 4),
  ),
  'BlurPool3D': case(enc_dec_3dcnn.BlurPool3D.config(), _VIDEO),
  'DiscriminatorResBlock': case(
    enc_dec_3dcnn.DiscriminatorResBlock.config(input_dim=3, output_dim=4),
    _VIDEO,
  ),
  'ScalarQuantizer': case(
    video_quantizer.ScalarQuantizer.config(), f32(1, 2, 8)
  ),
  'LookupFreeQuantizer': case(
    video_quantizer.LookupFreeQuantizer.config(), f32(1, 2, 8)
  ),
  'VQGANLoss': case(
    video_losses.VQGANLoss.config(),
    {
      'reconstructed': _VIDEO,
      'logits_real': f32(1, 1),
      'logits_fake': f32(1, 1),
      'r1_gradient_penalty': f32(),
      'quantizer_loss': f32(),
    },
    {'video': _VIDEO},
  ),
  'Encoder': case(vqvae.Encoder.config(**_SIZES, **_norms()), _VIDEO),
  'Decoder': case(
    vqvae.Decoder.config(**_SIZES, **_norms(), cond_norm_tpl=_cond_norm()),
    f32(1, 2, 2, 2, 4),
  ),
  'Discriminator': case(
    vqvae.Discriminator.config(
      filters=2,
      num_frames=3,
      image_height=4,
      image_width=4,
      channel_multipliers=(1, 2),
    ),
    _VIDEO,
  ),
  'VQVaeModel': case(
    vqvae.VQVaeModel.config(
      encoder_tpl=vqvae.Encoder.config(**_norms()),
      decoder_tpl=vqvae.Decoder.config(**_norms(), cond_norm_tpl=_cond_norm()),
      **_SIZES,
    ),
    _VIDEO,
  ),
}
