# SPDX-License-Identifier: Apache-2.0
"""How a stack of transformer layers is called, whatever way it runs them."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int, Num

from praxis.layers import decode_states


class SideInputs(NamedTuple):
  """What each layer of a stack gets beside the output of the one before."""

  paddings: Num[Array, 'B T'] | None
  segment_mask: Float[Array, '#B 1 #T T'] | None
  cross_inputs: Float[Array, 'B S D'] | None
  cross_paddings: Num[Array, 'B S'] | None
  cross_segment_mask: Float[Array, '#B 1 #T S'] | None
  segment_pos: Int[Array, '#B T'] | None


class StepInputs(NamedTuple):
  """The same of a decoding step, or of a run of them."""

  time_step: Int[Array, ''] | int
  segment_pos: Int[Array, 'B *L'] | None
  atten_mask: Float[Array, '#B 1 *L S'] | None
  cross_paddings: Num[Array, 'B C'] | None
  cross_segment_mask: Float[Array, '#B 1 C'] | None


class TransformerStack(decode_states.HoldsDecodeStates):
  """What is called like a StackedTransformer; subclasses say what it runs."""

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_mask: Float[Array, '#B 1 #T T'] | None = None,
    cross_inputs: Float[Array, 'B S D'] | None = None,
    cross_paddings: Num[Array, 'B S'] | None = None,
    cross_segment_mask: Float[Array, '#B 1 #T S'] | None = None,
    segment_pos: Int[Array, '#B T'] | None = None,
  ) -> Any:
    """Returns the output of the last layer, like the inputs.

    Args:
      inputs: of the first layer.
      paddings: 1 where the inputs are padding.
      segment_mask: hides other segments; additive, see attentions.
      cross_inputs: what cross attention attends to.
      cross_paddings: 1 where those are padding.
      cross_segment_mask: hides segments of cross_inputs.
      segment_pos: position of each input in its segment.
    """
    side = SideInputs(
      paddings,
      segment_mask,
      cross_inputs,
      cross_paddings,
      cross_segment_mask,
      segment_pos,
    )
    return self._run(inputs, side)

  def extend_step(
    self,
    inputs: Float[Array, 'B *L D'],
    *,
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, 'B *L'] | None = None,
    atten_mask: Float[Array, '#B 1 *L S'] | None = None,
    cross_paddings: Num[Array, 'B C'] | None = None,
    cross_segment_mask: Float[Array, '#B 1 C'] | None = None,
  ) -> Any:
    """Returns the output of one decoding step, or of a run of them.

    Args:
      inputs: of the step, or with a time axis those of several.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; the cached steps
        before its beginning are hidden. All are visible when absent.
      atten_mask: in place of all this, which cached steps are hidden.
      cross_paddings: 1 where the inputs of cross attention were padding.
      cross_segment_mask: hides segments of those inputs.
    """
    step = StepInputs(
      time_step, segment_pos, atten_mask, cross_paddings, cross_segment_mask
    )
    return self._run_step(inputs, step)

  def _run(self, inputs: Float[Array, 'B T D'], side: SideInputs) -> Any:
    """Returns the output of the last layer."""
    raise NotImplementedError(f'{type(self).__name__} runs no layers')

  def _run_step(self, inputs: Float[Array, 'B *L D'], step: StepInputs) -> Any:
    """Returns the output of the last layer for a decoding step."""
    raise NotImplementedError(f'{type(self).__name__} has no decoding steps')
