# SPDX-License-Identifier: Apache-2.0
"""The language model of Llama 4: chunks of positions, layers without them."""

from __future__ import annotations

import dataclasses

from pax.huggingface import config_settings
from pax.huggingface.config_settings import Json
from pax.huggingface.mixture_of_experts import ExpertTensors, MixtureOfExperts
from pax.huggingface.query_temperatures import QueryTemperature
from pax.huggingface.rotary_decoder import RotaryDecoder


def read_text(config: Json) -> RotaryDecoder:
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
  has_bias = config.get('attention_bias', False)
  rotary_layers = config_settings.rotary_layers(config)
  temperature = None
  if config.get('attn_temperature_tuning', True):
    size = config_settings.size(config, 'floor_scale')
    temperature = QueryTemperature(
      log_scale=config['attn_scale'],
      interval=size,
      offset=1,
      has_rotary=False,
    )
  decoder = config_settings.rotary_decoder(
    {
      **config,
      'intermediate_size': config_settings.size(
        config, 'intermediate_size_mlp'
      ),
    },
    activation=config.get('hidden_act', 'silu'),
    has_interleaved_pairs=True,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_rotated_norms=config.get('use_qk_norm', True),
    rotary_layers=rotary_layers,
    chunk_sizes=_chunk_sizes(config, rotary_layers),
    query_temperature=temperature,
    feed_forward_tensors='feed_forward',
  )
  return dataclasses.replace(decoder, experts=_experts(config))


def _chunk_sizes(
  config: Json, rotary_layers: tuple[bool, ...]
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
  return config_settings.windows(kinds, size, local='chunked_attention')


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
