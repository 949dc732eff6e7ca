# SPDX-License-Identifier: Apache-2.0
"""Rotary attention of layers that share the keys and values of one of them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pax.huggingface.layers.rotary_attention import RotaryAttention
from praxis import base_layer
from praxis.layers import shared_key_attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeySourceAttention(RotaryAttention):
  """The settings of the one that has them."""

  layer_class: ClassVar[type[base_layer.BaseLayer]] = (
    shared_key_attention.KeySourceAttention
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedKeyAttention(RotaryAttention):
  """The settings of one that attends to those of its `key_source`."""

  layer_class: ClassVar[type[base_layer.BaseLayer]] = (
    shared_key_attention.SharedKeyAttention
  )

  def _key_projections(self) -> list[tuple[str, str, tuple[int, ...]]]:
    return []

  def _normed_heads(self) -> list[tuple[str, int]]:
    return [('q', self.num_heads)]
