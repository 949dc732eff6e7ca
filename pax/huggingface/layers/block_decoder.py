# SPDX-License-Identifier: Apache-2.0
"""Decoders whose files have a block for each mixer and feed-forward layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import override

from pax.huggingface.layers.rotary_decoder import LayerTensors, RotaryDecoder


class Blocks(NamedTuple):
  """Indices of the blocks of a layer."""

  mixer: int
  # None if the layer has no feed-forward block.
  feed_forward: int | None

  @classmethod
  def of_layers(cls, are_mixers: Sequence[bool]) -> list[Blocks]:
    """Returns the blocks of layers, each a mixer and what follows it.

    Args:
      are_mixers: Whether each block is a mixer, not a feed-forward layer.

    Raises:
      ValueError: A feed-forward block does not follow a mixer.
    """
    layers: list[Blocks] = []
    for i, is_mixer in enumerate(are_mixers):
      if is_mixer:
        layers.append(cls(i, None))
      elif layers and layers[-1] == (i - 1, None):
        layers[-1] = cls(i - 1, i)
      else:
        raise ValueError(
          'each feed-forward layer in config.json must follow Mamba or'
          f' attention, got one at {i} after'
          f' {"another" if i else "none"}; praxis has no layer of it alone'
        )
    return layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDecoder(RotaryDecoder):
  """The settings of a model."""

  embedding_tensor: str = 'backbone.embeddings'
  final_norm_tensor: str = 'backbone.norm_f'
  # Those of each layer.
  blocks: tuple[Blocks, ...]

  @override
  def _layer_tensors(self, index: int) -> LayerTensors:
    blocks = self.blocks[index]
    mixer, feed_forward = f'backbone.layers.{blocks.mixer}', None
    norms = {'layer_norm': f'{mixer}.norm'}
    if blocks.feed_forward is not None:
      feed_forward = f'backbone.layers.{blocks.feed_forward}'
      norms['ff_layer/layer_norm'] = f'{feed_forward}.norm'
    return LayerTensors(
      layer=mixer,
      norms=norms,
      mixer=f'{mixer}.mixer',
      feed_forward=feed_forward,
    )
