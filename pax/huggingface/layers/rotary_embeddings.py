# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings by `rope_parameters` of config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax
from praxis.layers.embedding_softmax import rotary_scaling

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def rotary_embedding(rope: Mapping[str, Any]) -> LayerTpl:
  """Returns the Config of the rotary embedding of `rope_parameters`.

  Raises:
    ValueError: A setting is not supported, or a number is missing.
  """

  def number(name: str, default: float | None = None) -> float:
    value = rope.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float):
      raise ValueError(
        f'{name} of the rotary embedding in config.json must be a number, got'
        f' {value!r}; use the file that save_pretrained writes'
      )
    return float(value)

  kind, fraction = rope['rope_type'], rope.get('partial_rotary_factor', 1.0)
  if kind != 'proportional' and fraction != 1.0:
    raise ValueError(
      'partial_rotary_factor in config.json must be 1, got'
      f' {fraction}; the layer rotates all channels'
    )
  rotary = Config(
    embedding_softmax.RotaryPositionalEmbedding,
    max_timescale=number('rope_theta'),
  )
  if kind == 'linear':
    rotary.scaling_tpl = Config(
      rotary_scaling.LinearRotaryScaling, factor=number('factor')
    )
  elif kind == 'llama3':
    rotary.scaling_tpl = Config(
      rotary_scaling.Llama3RotaryScaling,
      factor=number('factor'),
      low_freq_factor=number('low_freq_factor'),
      high_freq_factor=number('high_freq_factor'),
      original_max_position=int(number('original_max_position_embeddings')),
    )
  elif kind == 'yarn':
    rotary.scaling_tpl = Config(
      rotary_scaling.YarnRotaryScaling,
      factor=number('factor'),
      original_max_position=int(number('original_max_position_embeddings')),
      beta_fast=number('beta_fast', 32),
      beta_slow=number('beta_slow', 1),
      truncate=rope.get('truncate', True),
      attention_factor=_yarn_attention_factor(rope, number),
    )
  elif kind == 'proportional':
    rotary.scaling_tpl = Config(
      rotary_scaling.ProportionalRotaryScaling,
      fraction=number('partial_rotary_factor', 1.0),
      factor=number('factor', 1.0),
    )
  elif kind != 'default':
    raise ValueError(
      "rope_type in config.json must be 'default', 'linear', 'llama3',"
      f" 'proportional' or 'yarn', got {kind!r}; only these scalings have a"
      ' layer in praxis'
    )
  return rotary


def _yarn_attention_factor(
  rope: Mapping[str, Any], number: Callable[[str], float]
) -> float | None:
  """Returns the factor that the settings of YaRN have; None: by its paper."""
  if rope.get('attention_factor') is not None:
    return number('attention_factor')
  names = ('mscale', 'mscale_all_dim')
  if not all(map(rope.get, names)):
    return None
  of_rotated, of_all = (yarn_scale(rope, name) for name in names)
  return of_rotated / of_all


def yarn_scale(rope: Mapping[str, Any], name: str) -> float:
  """Returns 1 + 0.1 * rope[name] * log(factor), the scale of YaRN's paper.

  Args:
    rope: See `rotary_embedding`.
    name: Of the setting, `mscale` or `mscale_all_dim`.
  """
  return 1 + 0.1 * rope[name] * math.log(max(rope['factor'], 1.0))
