# SPDX-License-Identifier: Apache-2.0
"""Layers for images: convolutions, norms, poolings and networks of them."""

from __future__ import annotations

from praxis.layers import (
  convolutions,
  mobilenet,
  normalizations,
  poolings,
  resnets,
  vanillanets,
  vits,
)
from tests.golden.layer_case import case, f32


def _split(cfg, **mappings):
  for name, mapping in mappings.items():
    setattr(cfg.weight_split_dims_mapping, name, mapping)
  return cfg


def _conv(cls, size=(3, 2), channels=(3, 4), **fields):
  return cls.config(
    filter_shape=(*size, *channels), filter_stride=(1,) * len(size), **fields
  )


_STAGES = {
  'strides': (1, 2),
  'channels': (8, 16),
  'blocks': (1, 1),
  'kernels': (3, 3),
}
_IMAGE = f32(2, 8, 8, 3)
_VIT = vits.build_vision_transformer_hparams_for_test((2, 2), 4, 3, 8, 16, 1, 2)

CASES = {
  'Conv2D': case(
    _split(
      _conv(convolutions.Conv2D, bias=True), wt=[None, None, 'data', 'mdl']
    ),
    _IMAGE,
  ),
  'Conv3D': case(
    _conv(convolutions.Conv3D, size=(3, 2, 2)), f32(2, 3, 4, 4, 3)
  ),
  'ConvBNAct': case(_conv(convolutions.ConvBNAct), _IMAGE),
  'ConvBNActWithPadding': case(
    _conv(convolutions.ConvBNActWithPadding), _IMAGE, f32(2, 8)
  ),
  'DepthwiseConv1D': case(
    _split(
      convolutions.DepthwiseConv1D.config(filter_shape=(3, 4, 2), bias=True),
      him=[None, None, 'mdl'],
    ),
    f32(2, 6, 4),
    f32(2, 6),
  ),
  'LightConv1D': case(
    _split(
      convolutions.LightConv1D.config(input_dims=4, kernel_size=3),
      df=['data', 'mdl'],
      him=[None, None, 'mdl'],
    ),
    f32(2, 6, 4),
    f32(2, 6),
  ),
  'BatchNorm': case(
    normalizations.BatchNorm.config(dim=4), f32(2, 3, 4), f32(2, 3)
  ),
  'GroupNorm': case(
    normalizations.GroupNorm.config(dim=4, num_groups=2, input_rank=4),
    f32(2, 3, 3, 4),
  ),
  'LayerNorm': case(normalizations.LayerNorm.config(dim=4), f32(2, 3, 4)),
  'RmsNorm': case(normalizations.RmsNorm.config(dim=4), f32(2, 3, 4)),
  'GroupedRmsNorm': case(
    normalizations.GroupedRmsNorm.config(dim=4, num_groups=2), f32(2, 3, 4)
  ),
  'RmsNormNoScale': case(
    normalizations.RmsNormNoScale.config(dim=4), f32(2, 3, 4)
  ),
  'IdentityNorm': case(normalizations.IdentityNorm.config(dim=4), f32(2, 3, 4)),
  'WeightNormL2': case(normalizations.WeightNormL2.config(dim=4), f32(2, 3, 4)),
  'SpectralNorm': case(normalizations.SpectralNorm.config(dim=4), f32(2, 3, 4)),
  'Pooling': case(
    poolings.Pooling.config(window_shape=(3, 3), window_stride=(2, 2)),
    _IMAGE,
    f32(2, 8),
  ),
  'GlobalPooling': case(
    poolings.GlobalPooling.config(pooling_dims=[1]), _IMAGE
  ),
  'Pooling1D': case(
    poolings.Pooling1D.config(stride=2), f32(2, 6, 4), f32(2, 6)
  ),
  'ResNetBlock': case(
    resnets.ResNetBlock.config(input_dim=4, output_dim=8, stride=2),
    f32(2, 4, 4, 4),
  ),
  'ResNetBasicBlock': case(
    resnets.ResNetBasicBlock.config(input_dim=4, output_dim=4),
    f32(2, 4, 4, 4),
  ),
  'ResNet': case(resnets.ResNet.config(**_STAGES), _IMAGE),
  'VanillaBlock': case(
    vanillanets.VanillaBlock.config(input_dim=4, output_dim=8),
    f32(2, 4, 4, 4),
  ),
  'VanillaNet': case(vanillanets.VanillaNet.config(**_STAGES), _IMAGE),
  'InvertedResidualBlock': case(
    mobilenet.InvertedResidualBlock.config(input_dim=4, output_dim=4),
    f32(2, 4, 4, 4),
  ),
  'MobileNet': case(
    mobilenet.MobileNet.config(
      expansions=[1, 2],
      strides=[1, 2],
      channels=[8, 8],
      output_channels=16,
      num_classes=5,
    ),
    _IMAGE,
  ),
  'VitEntryLayers': case(
    _VIT.entry_layers_tpl.clone().set(
      prepend_cls_tokens=1, append_cls_tokens=2
    ),
    _IMAGE,
  ),
  'VitExitLayers': case(_VIT.exit_layers_tpl.clone(), f32(2, 4, 8)),
  'VisionTransformer': case(_VIT, _IMAGE),
}
