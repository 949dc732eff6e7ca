# SPDX-License-Identifier: Apache-2.0
"""Prompts of a language model in the layouts of the network and the decoder."""

from __future__ import annotations

import jax.numpy as jnp
import jax.typing
from absl import logging
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.decoding import sequence_alignment
from praxis.decoding.hparams import DecoderHParams
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap


def prepare_decode_data(
  batch: NestedMap,
  hparams: DecoderHParams,
  model_type: LanguageModelType,
  dtype: jax.typing.DTypeLike,
) -> NestedMap:
  """Returns the prompts of a batch as inputs of prefill and decode loop.

  Args:
    batch: see `LanguageModel.decode`.
    hparams: the settings of the decoder.
    model_type: CAUSAL or PREFIX.
    dtype: the dtype of paddings.

  Returns:
    seqlen, the number of columns of the result; input_ids [B, P],
    prefix_lengths [B] and original_lengths [B], the prompts; the arguments of
    the network for the prefill, fprop_input_ids, fprop_input_paddings,
    fprop_segment_ids, fprop_segment_pos, causal_attention_mask, start_time_step
    and extra_input_kwargs.
  """
  lengths, causal_mask = _lengths_and_causal_mask(batch, model_type, dtype)
  prompt_len = batch.ids.shape[1]
  data = NestedMap(
    seqlen=_result_length(hparams, prompt_len),
    prefix_lengths=lengths,
    original_lengths=py_utils.sequence_lengths(batch_paddings(batch, dtype)),
    extra_input_kwargs={},
  )
  if hparams.use_extra_input_kwargs:
    data.extra_input_kwargs = batch.get('extra_input_kwargs', {})
  if hparams.fprop_for_prefix:
    data.update(_prefilled(batch.ids, lengths, causal_mask, dtype))
  else:
    data.update(_token_by_token(batch.ids, lengths, causal_mask))
  return data


def batch_paddings(
  batch: NestedMap, dtype: jax.typing.DTypeLike
) -> Float[Array, 'B T']:
  """Returns the paddings of a batch, zeros if it has none."""
  if 'paddings' in batch:
    return batch.paddings
  return jnp.zeros(batch.ids.shape, dtype)


def _lengths_and_causal_mask(
  batch: NestedMap, model_type: LanguageModelType, dtype: jax.typing.DTypeLike
) -> tuple[Int[Array, ' B'], Int[Array, 'B T'] | None]:
  """Returns the prompts' lengths and a prefix model's causal_attention_mask."""
  is_prefix_model = model_type == LanguageModelType.PREFIX
  indicator = batch.get('inputs_indicator') if is_prefix_model else None
  if is_prefix_model and indicator is None and 'prefix_lengths' not in batch:
    raise ValueError(
      "the batch of a prefix model needs 'inputs_indicator' or "
      f"'prefix_lengths', got {sorted(batch)}"
    )
  if 'prefix_lengths' in batch:
    lengths = batch.prefix_lengths
  elif indicator is not None:
    lengths = jnp.sum(indicator.astype(jnp.int32), axis=1)
  else:
    lengths = py_utils.sequence_lengths(batch_paddings(batch, dtype))
  lengths = lengths.astype(jnp.int32)
  if not is_prefix_model:
    return lengths, None
  if indicator is None:
    indicator = jnp.arange(batch.ids.shape[1]) < lengths[:, jnp.newaxis]
  return lengths, 1 - indicator.astype(jnp.int32)


def _result_length(hparams: DecoderHParams, prompt_len: int) -> int:
  """Returns the number of columns of the result."""
  steps = hparams.decode_steps()
  if hparams.fprop_for_prefix:
    if not steps:
      raise ValueError(
        'max_decode_steps must be > 0 with fprop_for_prefix, got None'
      )
    return prompt_len + steps[-1]
  if hparams.seqlen <= 0:
    raise ValueError(
      f'Must set p.decoder_tpl.seqlen > 0, got {hparams.seqlen}; it is '
      'the length of prompt and continuation'
    )
  return hparams.seqlen


def _prefilled(
  ids: Int[Array, 'B P'],
  lengths: Int[Array, ' B'],
  causal_mask: Int[Array, 'B P'] | None,
  dtype: jax.typing.DTypeLike,
) -> NestedMap:
  """Returns right-aligned prompts; padding is a segment of its own."""
  prompt_len = ids.shape[1]
  ids, paddings = sequence_alignment.right_align_prefix_ids(ids, lengths, dtype)
  if causal_mask is not None:
    causal_mask = sequence_alignment.right_align_tensors(causal_mask, lengths)
  return NestedMap(
    input_ids=ids,
    input_paddings=paddings,
    fprop_input_ids=ids,
    fprop_input_paddings=paddings,
    fprop_segment_ids=(1 - paddings).astype(jnp.int32),
    fprop_segment_pos=sequence_alignment.right_align_segment_position(
      lengths, prompt_len
    ),
    causal_attention_mask=causal_mask,
    start_time_step=prompt_len - 1,
  )


def _token_by_token(
  ids: Int[Array, 'B P'],
  lengths: Int[Array, ' B'],
  causal_mask: Int[Array, 'B P'] | None,
) -> NestedMap:
  """Returns left-aligned prompts; the prefill reads a single padding."""
  if causal_mask is not None:
    if causal_mask.shape[1] > 1:
      logging.warning(
        'a prefix model that reads its prompt token by token attends to the '
        'prompt causally, unlike in training; set fprop_for_prefix=True and '
        'max_decode_steps to read it in one forward pass'
      )
    causal_mask = causal_mask[:, :1]
  # The decode loop starts from column 0, also where the prompt is empty.
  num_tokens = jnp.maximum(lengths, 1)
  is_prompt = jnp.arange(ids.shape[1])[jnp.newaxis] < num_tokens[:, jnp.newaxis]
  empty_ids = jnp.zeros_like(ids[:, :1])
  return NestedMap(
    input_ids=jnp.where(is_prompt, ids, 0),
    input_paddings=1.0 - is_prompt,
    fprop_input_ids=empty_ids,
    fprop_input_paddings=jnp.ones(empty_ids.shape, jnp.float32),
    fprop_segment_ids=None,
    fprop_segment_pos=None,
    causal_attention_mask=causal_mask,
    start_time_step=0,
  )
