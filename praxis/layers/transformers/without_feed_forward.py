# SPDX-License-Identifier: Apache-2.0
"""Transformer layers without a feed-forward block."""

from __future__ import annotations

from jaxtyping import Array, Float, Int, Num
from typing_extensions import override

from praxis.layers.transformers import transformer


class TransformerWithoutFeedForward(transformer.Transformer):
  """Self-attention, or what replaces it, alone.

  `tr_fflayer_tpl` and `hidden_dims` are ignored.
  """

  @override
  def _create_feed_forward(self) -> None:
    pass

  @override
  def _feed_forward(
    self,
    inputs: Float[Array, 'B T D'],
    outputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    return outputs

  @override
  def _feed_forward_step(
    self,
    inputs: Float[Array, 'B *L D'],
    outputs: Float[Array, 'B *L D'],
    time_step: Int[Array, ''] | int,
  ) -> Float[Array, 'B *L D']:
    return outputs
