# SPDX-License-Identifier: Apache-2.0
"""The norms of a layer, and their tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorms:
  """Which values of a layer are normalized, and by which tensors."""

  # One of praxis.layers.transformers.norm_placement.NORM_POLICIES.
  policy: str
  # Names of the tensors in the layer's files by the paths of the norms.
  tensors: Mapping[str, str]


# The inputs of attention and of feed-forward layers.
INPUTS = LayerNorms(
  policy='pre',
  tensors={
    'layer_norm': 'input_layernorm',
    'ff_layer/layer_norm': 'post_attention_layernorm',
  },
)
# Their outputs.
OUTPUTS = LayerNorms(
  policy='post',
  tensors={
    'layer_norm': 'post_attention_layernorm',
    'ff_layer/layer_norm': 'post_feedforward_layernorm',
  },
)
# Both.
INPUTS_AND_OUTPUTS = LayerNorms(
  policy='primer_hybrid',
  tensors={
    'pre_layer_norm': 'input_layernorm',
    'post_layer_norm': 'post_attention_layernorm',
    'ff_layer/pre_layer_norm': 'pre_feedforward_layernorm',
    'ff_layer/post_layer_norm': 'post_feedforward_layernorm',
  },
)
# Both, with the names of GLM-4.
GLM_4 = LayerNorms(
  policy='primer_hybrid',
  tensors={
    'pre_layer_norm': 'input_layernorm',
    'post_layer_norm': 'post_self_attn_layernorm',
    'ff_layer/pre_layer_norm': 'post_attention_layernorm',
    'ff_layer/post_layer_norm': 'post_mlp_layernorm',
  },
)
