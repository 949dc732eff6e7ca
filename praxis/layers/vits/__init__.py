# SPDX-License-Identifier: Apache-2.0
"""Vision transformers (ViT, arXiv:2010.11929)."""

from praxis.alias_names import module_getattr
from praxis.layers.vits.entry_exit import VitEntryLayers, VitExitLayers
from praxis.layers.vits.patches import (
  image_to_patch,
  interpolate_embedding_2d,
  patch_to_image,
)
from praxis.layers.vits.vision_transformer import (
  VisionTransformer,
  build_vision_transformer_hparams_for_test,
)

__getattr__ = module_getattr(__name__)

__all__ = [
  'VisionTransformer',
  'VitEntryLayers',
  'VitExitLayers',
  'build_vision_transformer_hparams_for_test',
  'image_to_patch',
  'interpolate_embedding_2d',
  'patch_to_image',
]
