# SPDX-License-Identifier: Apache-2.0
"""The additive attention masks of a stack, from paddings and segments."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis.layers import attentions
from praxis.layers.attentions import segments

# [batch or 1, 1, queries or 1, keys]
AdditiveMask = Float[Array, '#B 1 #T S']


def compute_attention_masks_for_fprop(
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None = None,
  causal_attention: bool | None = False,
  segment_mask: Float[Array, '#B 1 #T T'] | segments.SegmentMask | None = None,
  cross_inputs: Float[Array, 'B S Ds'] | None = None,
  cross_paddings: Num[Array, 'B S'] | None = None,
  cross_segment_mask: Float[Array, '#B 1 #T S'] | None = None,
  fold_padding_with_segment_mask: bool | None = False,
) -> tuple[
  Float[Array, '#B 1 #T T'] | segments.SegmentMask,
  Float[Array, '#B 1 #T S'] | None,
]:
  """Returns the masks of self-attention and, given its inputs, cross-attention.

  Args:
    inputs: of the stack.
    paddings: 1 for padded inputs.
    causal_attention: whether to mask later positions.
    segment_mask: additive mask between segments; segments stay so if they mask
      padding too.
    cross_inputs: keys and values of cross-attention.
    cross_paddings: 1 for padded cross inputs.
    cross_segment_mask: additive mask between inputs and cross inputs.
    fold_padding_with_segment_mask: whether `segment_mask` masks padding too, so
      that `paddings` are not used.

  Raises:
    ValueError: a mask or paddings required by the other arguments are None.
  """
  mask: AdditiveMask | segments.SegmentMask
  if fold_padding_with_segment_mask:
    if segment_mask is None:
      raise _missing('segment_mask', 'fold_padding_with_segment_mask')
    mask = segment_mask
  else:
    if paddings is None:
      raise _missing('paddings', 'fold_padding_with_segment_mask=False')
    mask = attentions.convert_paddings_to_mask(paddings, inputs.dtype)
    if segment_mask is not None:
      mask = attentions.merge_masks(segments.additive(segment_mask), mask)
  if causal_attention:
    if isinstance(mask, segments.SegmentMask):
      mask = dataclasses.replace(mask, is_causal=True)
    else:
      mask = attentions.merge_masks(mask, attentions.causal_mask(inputs))
  if cross_inputs is None:
    return mask, None
  if cross_paddings is None:
    raise _missing('cross_paddings', 'cross_inputs')
  cross_mask = attentions.convert_paddings_to_mask(cross_paddings, inputs.dtype)
  if cross_segment_mask is not None:
    # merge_masks is for square masks, of queries and keys of one sequence.
    cross_mask = jnp.minimum(cross_segment_mask, cross_mask)
  return mask, cross_mask


def compute_attention_masks_for_extend_step(
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_mask: Float[Array, '#B 1 S'] | None = None,
  cross_paddings: Num[Array, 'B C'] | None = None,
  cross_segment_mask: Float[Array, '#B 1 C'] | None = None,
) -> tuple[Float[Array, '#B 1 S'], Float[Array, '#B 1 C'] | None]:
  """Returns the masks of the single query at `time_step`.

  Args:
    time_step: index of the step.
    seq_len: number of steps in the cache.
    segment_mask: additive mask over cached steps, besides the causal one.
    cross_paddings: 1 for padded cross inputs.
    cross_segment_mask: additive mask over cross inputs.
  """
  dtype = jnp.float32 if segment_mask is None else segment_mask.dtype
  is_later = (jnp.arange(seq_len) > time_step).astype(dtype)
  mask = attentions.convert_paddings_to_mask(is_later[jnp.newaxis], dtype)
  mask = mask[:, 0]
  if segment_mask is not None:
    mask = jnp.minimum(mask, segment_mask)
  if cross_paddings is None:
    return mask, None
  cross_mask = attentions.convert_paddings_to_mask(cross_paddings)[:, 0]
  if cross_segment_mask is not None:
    cross_mask = jnp.minimum(cross_mask, cross_segment_mask)
  return mask, cross_mask


def _missing(name: str, reason: str) -> ValueError:
  return ValueError(f'{name} must be given with {reason}, got None')
