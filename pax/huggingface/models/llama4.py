# SPDX-License-Identifier: Apache-2.0
"""The language model of Llama 4: chunks of positions, layers without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.layers.query_temperatures import QueryTemperature
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_llama4(config: Json) -> RotaryDecoder:
  """Returns a model of type llama4_text.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {
    'head_dim': 128,
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500_000.0,
    'intermediate_size_mlp': 16384,
    'attention_chunk_size': 8192,
    'attn_scale': 0.1,
    'floor_scale': 8192,
    **config,
    # Published files have an empty list for the layers of the interval.
    'no_rope_layers': config.get('no_rope_layers') or None,
  }
  rotary_layers = config_settings.rotary_layers(config)
  hidden_dims = config_settings.size(config, 'intermediate_size_mlp')
  return config_settings.rotary_decoder(
    config,
    _attentions(config, rotary_layers),
    feed_forward=config_settings.feed_forward(
      {**config, 'intermediate_size': hidden_dims}, tensors='feed_forward'
    ),
    experts=_experts(config),
  )


def _attentions(
  config: Json, rotary_layers: Sequence[bool]
) -> list[RotaryAttention]:
  """Returns the attention of each layer."""
  has_bias = config.get('attention_bias', False)
  rotary = config_settings.rotary_attention(
    config,
    has_interleaved_pairs=True,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_rotated_norms=config.get('use_qk_norm', True),
  )
  temperature = None
  if config.get('attn_temperature_tuning', True):
    temperature = QueryTemperature(
      log_scale=config['attn_scale'],
      interval=config_settings.size(config, 'floor_scale'),
      offset=1,
    )
  others = dataclasses.replace(rotary, rope=None, query_temperature=temperature)
  chunk_sizes = _chunk_sizes(config, rotary_layers)
  return [
    dataclasses.replace(rotary if rotates else others, chunk_size=size)
    for rotates, size in zip(rotary_layers, chunk_sizes, strict=True)
  ]


def _chunk_sizes(
  config: Json, rotary_layers: Sequence[bool]
) -> tuple[int | None, ...]:
  """Returns the number of positions of a chunk for each layer; None for all."""
  has_chunks = config['attention_chunk_size'] is not None
  kinds = config.get('layer_types') or [
    'chunked_attention' if rotates and has_chunks else 'full_attention'
    for rotates in rotary_layers
  ]
  size = None
  if 'chunked_attention' in kinds:
    size = config_settings.size(config, 'attention_chunk_size')
  return config_settings.windows(config, kinds, size, local='chunked_attention')


def _experts(config: Json) -> MixtureOfExperts | None:
  """Returns the mixtures; None if no layer has one."""
  layers = config.get('moe_layers')
  if layers is None:
    step = config_settings.size(
      {'interleave_moe_layer_step': 1, **config}, 'interleave_moe_layer_step'
    )
    num_layers = config_settings.size(config, 'num_hidden_layers')
    layers = range(step - 1, num_layers, step)
  if not layers:
    return None
  hidden_dims = config_settings.size(config, 'intermediate_size')
  return config_settings.experts(
    {'num_local_experts': 16, 'num_experts_per_tok': 1, **config},
    hidden_dims=hidden_dims,
    layers=tuple(layers),
    normalize_gates=False,
    shared_hidden_dims=hidden_dims,
    routing={'gate_function': 'sigmoid', 'gates_scale_inputs': True},
    tensors=ExpertTensors(
      mixture='feed_forward',
      router='router',
      gate='gate_up_proj',
      up='gate_up_proj',
      down='down_proj',
      shared='shared_expert',
    ),
  )
