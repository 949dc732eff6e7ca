# SPDX-License-Identifier: Apache-2.0
"""The prompts of a language model, as network and decoders read them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import alignment
from praxis.decoding.hparams import DecoderHParams
from praxis.nested_map import NestedMap


def result_length(decoder_params: DecoderHParams, columns: int) -> int:
  """Returns the number of columns of the result."""
  steps = decoder_params.decode_steps()
  if decoder_params.fprop_for_prefix:
    if not steps:
      raise ValueError(
        'max_decode_steps must be > 0 with fprop_for_prefix, got None'
      )
    return columns + steps[-1]
  if decoder_params.seqlen <= 0:
    raise ValueError(
      f'Must set p.decoder_tpl.seqlen > 0, got {decoder_params.seqlen}; it is '
      'the length of prompt and continuation'
    )
  if decoder_params.seqlen < columns:
    raise ValueError(
      f'decoder_tpl.seqlen must be at least {columns}, the length of the '
      f'prompts, got {decoder_params.seqlen}'
    )
  return decoder_params.seqlen


def at_once(
  ids: Int[Array, 'B P'],
  lengths: Int[Array, 'B'],
  causal: Array | None,
  dtype: Any,
) -> NestedMap:
  """Returns right-aligned prompts, padding in a segment of its own."""
  columns = ids.shape[1]
  ids, paddings = alignment.right_align_prefix_ids(ids, lengths, dtype)
  if causal is not None:
    causal = alignment.right_align_tensors(causal, lengths)
  return NestedMap(
    input_ids=ids,
    input_paddings=paddings,
    fprop_input_ids=ids,
    fprop_input_paddings=paddings,
    fprop_segment_ids=(1 - paddings).astype(jnp.int32),
    fprop_segment_pos=alignment.right_align_segment_position(lengths, columns),
    causal_attention_mask=causal,
    start_time_step=columns - 1,
  )


def token_by_token(
  ids: Int[Array, 'B P'], lengths: Int[Array, 'B'], causal: Array | None
) -> NestedMap:
  """Returns prompts of which the network reads nothing but a padding."""
  if causal is not None:
    raise ValueError(
      'a prefix model sees its prompt at once; set fprop_for_prefix=True and '
      'max_decode_steps'
    )
  is_prompt = jnp.arange(ids.shape[1])[jnp.newaxis] < lengths[:, jnp.newaxis]
  nothing = jnp.zeros_like(ids[:, :1])
  return NestedMap(
    input_ids=jnp.where(is_prompt, ids, 0),
    input_paddings=1.0 - is_prompt,
    fprop_input_ids=nothing,
    fprop_input_paddings=jnp.ones(nothing.shape, jnp.float32),
    fprop_segment_ids=None,
    fprop_segment_pos=None,
    causal_attention_mask=None,
    start_time_step=0,
  )
