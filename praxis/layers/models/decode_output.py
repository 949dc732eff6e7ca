# SPDX-License-Identifier: Apache-2.0
"""Outputs of decoding: metrics, and detokenized results on the host."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from praxis import base_model
from praxis.nested_map import NestedMap


@runtime_checkable
class Detokenizer(Protocol):
  """An input with a vocabulary, such as `BaseInput`."""

  def ids_to_strings(
    self, ids: np.ndarray, lengths: np.ndarray, key: str | None = None
  ) -> list[str]:
    """Returns the text of the first `lengths` ids of each row."""


def num_decoded_metrics(batch: NestedMap, batch_size: int) -> NestedMap:
  """Returns num_decoded, the number of examples that are not batch padding."""
  weights = batch.get('eval_sample_weights')
  if weights is None:
    num_decoded = jnp.asarray(batch_size, jnp.float32)
  else:
    num_decoded = jnp.sum(weights)
  return NestedMap(num_decoded=(num_decoded, jnp.asarray(1.0, jnp.float32)))


def process_lm_output(
  input_obj: Detokenizer, decode_out: NestedMap
) -> base_model.ProcessDecodeOut:
  """Returns ({'decoded_length'}, a (prompt, result) pair per example, {}).

  A result has prefix, decoded, original, ids (prompt and continuation),
  decoded_ids, decoded_substr (the continuation), logprobs, prefix_length,
  decode_length, and with several samples `sampled`, the text of each.

  Args:
    input_obj: has the vocabulary.
    decode_out: the output of `LanguageModel.decode`.
  """
  out = NestedMap({k: np.asarray(v) for k, v in decode_out.items()})
  sampled = None
  if out.output_ids.ndim == 3 and out.output_ids.shape[1] > 1:
    sampled = _sample_texts(input_obj, out)
  first = _first_samples(out)
  prefixes = input_obj.ids_to_strings(first.prefix_ids, first.prefix_lengths)
  originals = input_obj.ids_to_strings(out.ids, first.original_lengths)
  decoded = input_obj.ids_to_strings(first.output_ids, first.decode_lengths)
  pairs = []
  for row in non_padding_rows(out):
    start, end = first.prefix_lengths[row], first.decode_lengths[row]
    decoded_ids = first.output_ids[row][start:end]
    result = NestedMap(
      prefix=prefixes[row],
      decoded=decoded[row],
      original=originals[row],
      ids=first.output_ids[row],
      decoded_ids=decoded_ids,
      decoded_substr=_text(input_obj, decoded_ids),
      logprobs=first.logprobs[row],
      prefix_length=int(start),
      decode_length=int(end),
    )
    if sampled is not None:
      result.sampled = list(sampled[row])
    pairs.append((prefixes[row], result))
  length = _mean_over_examples(out, first.decode_lengths)
  return NestedMap(decoded_length=length), pairs, NestedMap()


def process_seq2seq_output(
  input_obj: Detokenizer, decode_out: NestedMap
) -> base_model.ProcessDecodeOut:
  """Returns ({'decode_length'}, a (source, result) pair per example, {}).

  A result has source, decoded, target, ids, logprobs [N, T], decode_length,
  prefix (the source) and decoded_substr (the decoded text), and with several
  samples `sampled`, the text of each.

  Args:
    input_obj: has the vocabularies 'src' and 'tgt'.
    decode_out: the output of `SequenceModel.decode`.
  """
  out = NestedMap(decode_out)
  for name in ('output_ids', 'decode_lengths', 'logprobs'):
    out[name] = np.asarray(out[name])
  sampled = None
  if out.output_ids.shape[1] > 1:
    sampled = _sample_texts(input_obj, out, key='tgt')
  ids, lengths = out.output_ids[:, 0], out.decode_lengths[:, 0]
  decoded = input_obj.ids_to_strings(ids, lengths, key='tgt')
  sources, targets = (
    input_obj.ids_to_strings(
      np.asarray(out[side].ids),
      np.sum(1 - np.asarray(out[side].paddings, np.int32), axis=1),
      key=side,
    )
    for side in ('src', 'tgt')
  )
  pairs = []
  for row in non_padding_rows(out):
    result = NestedMap(
      source=sources[row],
      decoded=decoded[row],
      target=targets[row],
      ids=ids[row],
      logprobs=out.logprobs[row],
      decode_length=lengths[row],
      prefix=sources[row],
      decoded_substr=decoded[row],
    )
    if sampled is not None:
      result.sampled = list(sampled[row])
    pairs.append((sources[row], result))
  length = _mean_over_examples(out, lengths)
  return NestedMap(decode_length=length), pairs, NestedMap()


def _sample_texts(
  input_obj: Detokenizer, out: NestedMap, key: str | None = None
) -> np.ndarray:
  """Returns the text of every sample, [B, N]."""
  batch, num_samples, length = out.output_ids.shape
  vocabulary = {} if key is None else {'key': key}
  texts = input_obj.ids_to_strings(
    out.output_ids.reshape(-1, length),
    out.decode_lengths.reshape(-1),
    **vocabulary,
  )
  return np.asarray(texts, object).reshape(batch, num_samples)


def _first_samples(out: NestedMap) -> NestedMap:
  """Returns the ids, lengths and logprobs of each example's first sample."""
  ranks = {'output_ids': 2, 'prefix_ids': 2, 'logprobs': 2}
  ranks |= {'decode_lengths': 1, 'prefix_lengths': 1, 'original_lengths': 1}
  return NestedMap(
    {
      name: out[name][:, 0] if out[name].ndim > rank else out[name]
      for name, rank in ranks.items()
      if name in out
    }
  )


def non_padding_rows(out: NestedMap) -> np.ndarray:
  """Returns the indices of the examples that are not batch padding."""
  weights = out.get('eval_sample_weights')
  if weights is None or weights.ndim == 0:
    return np.arange(out.output_ids.shape[0])
  return np.flatnonzero(weights > 0)


def _mean_over_examples(
  out: NestedMap, values: np.ndarray
) -> tuple[np.float32, np.float32]:
  """Returns the mean over examples, not batch padding, and their number."""
  examples = values[non_padding_rows(out)]
  mean = examples.sum() / max(examples.size, 1)
  return np.float32(mean), np.float32(examples.size)


def _text(input_obj: Detokenizer, ids: np.ndarray) -> str:
  length = np.asarray([len(ids)], np.int32)
  [text] = input_obj.ids_to_strings(ids[np.newaxis], length)
  return text
