# SPDX-License-Identifier: Apache-2.0
"""The attention masks of a whole stack, from paddings and segments."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis.layers import attentions

# [batch or 1, 1, queries or 1, keys], additive; see attentions.
Mask = Float[Array, '#B 1 #T S']


def compute_attention_masks_for_fprop(
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None = None,
  causal_attention: bool | None = False,
  segment_mask: Float[Array, '#B 1 #T T'] | None = None,
  cross_inputs: Float[Array, 'B S Ds'] | None = None,
  cross_paddings: Num[Array, 'B S'] | None = None,
  cross_segment_mask: Float[Array, '#B 1 #T S'] | None = None,
  fold_padding_with_segment_mask: bool | None = False,
) -> tuple[Float[Array, '#B 1 #T T'], Float[Array, '#B 1 #T S'] | None]:
  """Returns the masks of self attention and, given its inputs, of cross.

  Args:
    inputs: of the stack.
    paddings: 1 where the inputs are padding.
    causal_attention: whether later positions are hidden.
    segment_mask: hides other segments, and whatever else it was made to hide.
    cross_inputs: what cross attention attends to.
    cross_paddings: 1 where those are padding.
    cross_segment_mask: hides segments of cross_inputs.
    fold_padding_with_segment_mask: whether the segment mask says all there is
      to say about padding.

  Raises:
    ValueError: the padding is folded into a segment mask that is missing, or
      cross inputs come without their paddings.
  """
  mask = segment_mask
  if fold_padding_with_segment_mask:
    _require(segment_mask, 'segment_mask', 'fold_padding_with_segment_mask')
  else:
    _require(paddings, 'paddings', 'fold_padding_with_segment_mask=False')
    padding_mask = attentions.convert_paddings_to_mask(paddings, inputs.dtype)
    mask = _merge(segment_mask, padding_mask)
  if causal_attention:
    mask = _merge(mask, attentions.causal_mask(inputs))
  if cross_inputs is None:
    return mask, None
  _require(cross_paddings, 'cross_paddings', 'cross_inputs')
  cross_mask = attentions.convert_paddings_to_mask(cross_paddings, inputs.dtype)
  if cross_segment_mask is not None:
    # Not merged: queries are others than keys, even if there are as many.
    cross_mask = jnp.minimum(cross_segment_mask, cross_mask)
  return mask, cross_mask


def compute_attention_masks_for_extend_step(
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_mask: Float[Array, '#B 1 S'] | None = None,
  cross_paddings: Num[Array, 'B C'] | None = None,
  cross_segment_mask: Float[Array, '#B 1 C'] | None = None,
) -> tuple[Float[Array, '#B 1 S'], Float[Array, '#B 1 C'] | None]:
  """Returns the masks of the one query at `time_step`.

  Args:
    time_step: index of the step.
    seq_len: for how many steps the cache has room.
    segment_mask: hides cached steps beyond those after time_step.
    cross_paddings: 1 where the inputs of cross attention are padding.
    cross_segment_mask: hides segments of those inputs.
  """
  dtype = jnp.float32 if segment_mask is None else segment_mask.dtype
  later = (jnp.arange(seq_len) > time_step).astype(dtype)
  mask = attentions.convert_paddings_to_mask(later[jnp.newaxis], dtype)[:, 0]
  if segment_mask is not None:
    mask = jnp.minimum(mask, segment_mask)
  if cross_paddings is None:
    return mask, None
  cross_mask = attentions.convert_paddings_to_mask(cross_paddings)[:, 0]
  if cross_segment_mask is not None:
    cross_mask = jnp.minimum(cross_mask, cross_segment_mask)
  return mask, cross_mask


def mask_of_steps(
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_pos: Int[Array, 'B L'],
) -> Float[Array, 'B 1 L S']:
  """Returns the mask that shows each step its segment so far.

  Step i of the run stands at time_step + i in the cache, and its segment began
  segment_pos steps before.
  """
  column = jnp.arange(seq_len)
  row = time_step + jnp.arange(segment_pos.shape[1])
  first = row - segment_pos
  hidden = (column > row[:, jnp.newaxis]) | (column < first[:, :, jnp.newaxis])
  return attentions.hide(hidden, jnp.float32)[:, jnp.newaxis]


def _merge(a: Mask | None, b: Mask) -> Mask:
  return b if a is None else attentions.merge_masks(a, b)


def _require(value: Array | None, name: str, reason: str) -> None:
  if value is None:
    raise ValueError(f'{name} must be given with {reason}, got None')
