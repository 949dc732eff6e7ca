# SPDX-License-Identifier: Apache-2.0
"""From decoded ids to texts, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from praxis import base_model
from praxis.nested_map import NestedMap


def process(
  input_obj: Any, decode_out: NestedMap
) -> base_model.ProcessDecodeOut:
  """Returns ({'decoded_length'}, a (prompt, result) pair by example, {}).

  `input_obj` has the vocabulary, as `BaseInput.ids_to_strings`. A result has
  prefix, decoded, original, ids (of prompt and continuation), decoded_ids,
  decoded_substr (of the continuation), logprobs, prefix_length, decode_length,
  and with several samples sampled, all their texts.
  """
  out = NestedMap({k: np.asarray(v) for k, v in decode_out.items()})
  sampled = None
  if out.output_ids.ndim == 3 and out.output_ids.shape[1] > 1:
    sampled = all_samples(input_obj, out)
  first = first_samples(out)
  prefixes = input_obj.ids_to_strings(first.prefix_ids, first.prefix_lengths)
  originals = input_obj.ids_to_strings(out.ids, first.original_lengths)
  decoded = input_obj.ids_to_strings(first.output_ids, first.decode_lengths)
  pairs = []
  for row in counting_rows(out):
    start, end = first.prefix_lengths[row], first.decode_lengths[row]
    new_ids = first.output_ids[row][start:end]
    result = NestedMap(
      prefix=prefixes[row],
      decoded=decoded[row],
      original=originals[row],
      ids=first.output_ids[row],
      decoded_ids=new_ids,
      decoded_substr=_text(input_obj, new_ids),
      logprobs=first.logprobs[row],
      prefix_length=int(start),
      decode_length=int(end),
    )
    if sampled is not None:
      result.sampled = list(sampled[row])
    pairs.append((prefixes[row], result))
  length = np.average(first.decode_lengths).astype(np.float32)
  metrics = NestedMap(decoded_length=(length, np.float32(1.0)))
  return metrics, pairs, NestedMap()


def all_samples(
  input_obj: Any, out: NestedMap, key: str | None = None
) -> np.ndarray:
  """Returns the texts of all samples, [B, N]."""
  batch, num_samples, length = out.output_ids.shape
  named = {} if key is None else {'key': key}
  texts = input_obj.ids_to_strings(
    out.output_ids.reshape(-1, length), out.decode_lengths.reshape(-1), **named
  )
  return np.asarray(texts, object).reshape(batch, num_samples)


def first_samples(out: NestedMap) -> NestedMap:
  """Returns ids, lengths and logprobs of the first sample of each example."""
  ranks = {'output_ids': 2, 'prefix_ids': 2, 'logprobs': 2}
  ranks |= {'decode_lengths': 1, 'prefix_lengths': 1, 'original_lengths': 1}
  return NestedMap(
    {
      name: out[name][:, 0] if out[name].ndim > rank else out[name]
      for name, rank in ranks.items()
      if name in out
    }
  )


def counting_rows(out: NestedMap) -> np.ndarray:
  """Returns the examples that do not merely fill the batch."""
  weights = out.get('eval_sample_weights')
  if weights is None or weights.ndim == 0:
    return np.arange(out.output_ids.shape[0])
  return np.flatnonzero(weights > 0)


def _text(input_obj: Any, ids: np.ndarray) -> str:
  length = np.asarray([len(ids)], np.int32)
  [text] = input_obj.ids_to_strings(ids[np.newaxis], length)
  return text
