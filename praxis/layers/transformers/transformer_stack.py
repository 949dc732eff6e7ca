# SPDX-License-Identifier: Apache-2.0
"""The calling convention of stacks of transformer layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int, Num

from praxis.layers import decode_states
from praxis.layers.attentions import segments


class LayerContext(NamedTuple):
  """The inputs that all layers of a stack share in a forward pass."""

  paddings: Num[Array, 'B T'] | None
  segment_mask: Float[Array, '#B 1 #T T'] | segments.SegmentMask | None
  cross_inputs: Float[Array, 'B S D'] | None
  cross_paddings: Num[Array, 'B S'] | None
  cross_segment_mask: Float[Array, '#B 1 #T S'] | None
  segment_pos: Int[Array, '#B T'] | None
  layer_inputs: Float[Array, 'B T N P'] | None = None


class StepContext(NamedTuple):
  """The inputs that all layers of a stack share in decoding steps."""

  time_step: Int[Array, ''] | int
  segment_pos: Int[Array, ' B *L'] | None
  atten_mask: Float[Array, '#B 1 *L S'] | None
  cross_paddings: Num[Array, 'B C'] | None
  cross_segment_mask: Float[Array, '#B 1 C'] | None
  layer_inputs: Float[Array, 'B *L N P'] | None = None


class TransformerStack(decode_states.DecodeStateContainer):
  """The interface of StackedTransformer; subclasses execute the layers."""

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_mask: Float[Array, '#B 1 #T T']
    | segments.SegmentMask
    | None = None,
    cross_inputs: Float[Array, 'B S D'] | None = None,
    cross_paddings: Num[Array, 'B S'] | None = None,
    cross_segment_mask: Float[Array, '#B 1 #T S'] | None = None,
    segment_pos: Int[Array, '#B T'] | None = None,
    layer_inputs: Float[Array, 'B T N P'] | None = None,
  ) -> Any:
    """Returns the output of the last layer.

    Args:
      inputs: of the first layer.
      paddings: 1 for padded inputs.
      segment_mask: additive mask between segments, or the segments.
      cross_inputs: keys and values of cross-attention.
      cross_paddings: 1 for padded cross inputs.
      cross_segment_mask: additive mask between inputs and cross inputs.
      segment_pos: position of each input in its segment.
      layer_inputs: an input of each of the N layers.
    """
    context = LayerContext(
      paddings,
      segment_mask,
      cross_inputs,
      cross_paddings,
      cross_segment_mask,
      segment_pos,
      layer_inputs,
    )
    return self._run(inputs, context)

  def extend_step(
    self,
    inputs: Float[Array, 'B *L D'],
    *,
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None = None,
    atten_mask: Float[Array, '#B 1 *L S'] | None = None,
    cross_paddings: Num[Array, 'B C'] | None = None,
    cross_segment_mask: Float[Array, '#B 1 C'] | None = None,
    layer_inputs: Float[Array, 'B *L N P'] | None = None,
  ) -> Any:
    """Returns the output of one decoding step, or of L consecutive ones.

    Args:
      inputs: [B, D] for one step, [B, L, D] for several.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; masks cached steps
        before the segment. None: all cached steps are visible.
      atten_mask: additive mask over cached steps, replaces the default one.
      cross_paddings: 1 for padded cross inputs.
      cross_segment_mask: additive mask over cross inputs.
      layer_inputs: an input of each of the N layers.
    """
    context = StepContext(
      time_step,
      segment_pos,
      atten_mask,
      cross_paddings,
      cross_segment_mask,
      layer_inputs,
    )
    return self._run_step(inputs, context)

  def _refuse_layer_inputs(self, context: LayerContext | StepContext) -> None:
    """Checks that layers have no inputs of their own.

    Raises:
      ValueError: they have.
    """
    if context.layer_inputs is not None:
      raise ValueError(
        f'layer_inputs must be None for a {type(self).__name__}, whose layers'
        f' run in a loop, got shape {list(context.layer_inputs.shape)}; use a'
        ' StackedTransformer'
      )

  def _run(self, inputs: Float[Array, 'B T D'], context: LayerContext) -> Any:
    """Returns the output of the last layer."""
    raise NotImplementedError(f'{type(self).__name__} must define _run')

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], context: StepContext
  ) -> Any:
    """Returns the output of the last layer for decoding steps."""
    raise NotImplementedError(f'{type(self).__name__} has no decoding steps')
