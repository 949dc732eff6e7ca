# SPDX-License-Identifier: Apache-2.0
"""Settings of config.json that families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax.huggingface.rotary_decoder import RotaryDecoder

# Contents of config.json.
Json = Mapping[str, Any]


def rotary_decoder(config: Json, **settings: Any) -> RotaryDecoder:
  """Returns a decoder by the settings that its families share.

  Args:
    config: Contents of config.json.
    **settings: Fields that only some families have.

  Raises:
    ValueError: A setting is not supported.
  """
  num_heads = size(config, 'num_attention_heads')
  return RotaryDecoder(
    vocab_size=size(config, 'vocab_size'),
    model_dims=size(config, 'hidden_size'),
    hidden_dims=size(config, 'intermediate_size'),
    num_layers=size(config, 'num_hidden_layers'),
    num_heads=num_heads,
    num_kv_heads=config.get('num_key_value_heads') or num_heads,
    dim_per_head=config.get('head_dim')
    or size(config, 'hidden_size') // num_heads,
    norm_epsilon=config.get('rms_norm_eps', 1e-6),
    rope=rope(config),
    is_tied=config.get('tie_word_embeddings', False),
    **settings,
  )


def size(config: Json, name: str) -> int:
  """Returns a setting that is a number of something.

  Raises:
    ValueError: It is not positive.
  """
  value = config[name]
  if type(value) is not int or value < 1:
    raise ValueError(
      f'{name} in config.json must be an integer at least 1, got {value!r}; use'
      ' the file that save_pretrained writes'
    )
  return value


def rope(config: Json) -> dict[str, Any]:
  """Returns `rope_parameters`; older files have other names.

  Raises:
    ValueError: It is no object.
  """
  settings = config.get('rope_scaling') or config.get('rope_parameters') or {}
  if not isinstance(settings, Mapping):
    raise ValueError(
      'rope_scaling or rope_parameters in config.json must be an object, got'
      f' {settings!r}; use the file that save_pretrained writes'
    )
  found = dict(settings)
  found.setdefault('rope_theta', config.get('rope_theta', 10000.0))
  found.setdefault('rope_type', found.get('type', 'default'))
  found.setdefault(
    'partial_rotary_factor', config.get('partial_rotary_factor', 1.0)
  )
  return found
