# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5, dense and with experts: the layers of Qwen3-Next.

Its published folders are of models of images and texts. Positions of texts are
the same in all parts of a head (`mrope_section`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings, qwen3_next
from pax.huggingface.models.config_settings import Json

_DEFAULTS = {
  'num_key_value_heads': 4,
  'head_dim': 256,
  'partial_rotary_factor': 0.25,
  'linear_num_key_heads': 16,
  'linear_num_value_heads': 32,
  'linear_key_head_dim': 128,
  'linear_value_head_dim': 128,
  'linear_conv_kernel_dim': 4,
  'full_attention_interval': 4,
}
_EXPERT_DEFAULTS = {
  'num_key_value_heads': 2,
  'num_experts': 256,
  'num_experts_per_tok': 8,
  'moe_intermediate_size': 512,
  'shared_expert_intermediate_size': 512,
}
_FUSED_EXPERTS = re.compile(r'.*\.layers\.\d+\.mlp\.experts\.gate_up_proj')
# The setting that is True where one tensor has the gates and inputs of all
# experts, as in the published folders; transformers writes one of each expert.
_FUSES_EXPERTS = 'fuses_experts'


def with_names(config: Json, names: Collection[str]) -> Json:
  """Returns the settings of a model with experts whose files have these names.

  Args:
    config: Contents of config.json.
    names: Names of tensors.
  """
  fuses = any(
    _FUSED_EXPERTS.fullmatch(name) and not name.startswith('mtp.')
    for name in names
  )
  return {**config, _FUSES_EXPERTS: fuses}


def read_qwen3_5(config: Json) -> RotaryDecoder:
  """Returns the settings of a dense Qwen3.5.

  Raises:
    ValueError: A setting is not supported.
  """
  return qwen3_next.decoder(
    _settings({**_DEFAULTS, **config}), has_tensor_per_output=True
  )


def read_qwen3_5_moe(config: Json) -> RotaryDecoder:
  """Returns the settings of a Qwen3.5 with experts.

  Raises:
    ValueError: A setting is not supported.
  """
  settings = _settings({**_DEFAULTS, **_EXPERT_DEFAULTS, **config})
  layers = tuple(range(config_settings.size(settings, 'num_hidden_layers')))
  names = {}
  if config.get(_FUSES_EXPERTS):
    fused = 'gate_up_proj'
    names = {'gate': fused, 'up': fused, 'fused_outputs_first': True}
  return qwen3_next.decoder(
    # No layer has it.
    {'intermediate_size': settings['moe_intermediate_size'], **settings},
    has_tensor_per_output=True,
    experts=qwen3_next.experts(settings, layers, **names),
  )


def _settings(config: Json) -> Json:
  """Returns the settings of texts.

  Raises:
    ValueError: Attention has no output gate.
  """
  if not config.get('attn_output_gate', True):
    raise ValueError(
      'attn_output_gate in config.json must be True, got'
      f' {config["attn_output_gate"]!r}; transformers has no other attention'
    )
  rope = {
    name: value
    for name, value in config_settings.rope(config).items()
    if not name.startswith('mrope_')
  }
  return {**config, 'rope_scaling': None, 'rope_parameters': rope}
