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
  """Returns ({'num_decoded'}, a (prompt, result) pair by example, {}).

  `input_obj` has the vocabulary, as `BaseInput.ids_to_strings`. A result has
  prefix, decoded, original, ids, decoded_ids, decoded_substr, logprobs,
  prefix_length, decode_length, and with several samples sampled.
  """
  out = NestedMap({k: np.asarray(v) for k, v in decode_out.items()})
  batch, num_samples, _ = out.output_ids.shape
  prefixes = input_obj.ids_to_strings(out.prefix_ids, out.prefix_lengths)
  originals = input_obj.ids_to_strings(out.ids, out.original_lengths)
  by_sample = [
    _sample_texts(input_obj, out, sample) for sample in range(num_samples)
  ]
  kept = out.get('eval_sample_weights', np.ones(batch)) > 0
  pairs = []
  for row in np.flatnonzero(kept):
    result = NestedMap(
      prefix=prefixes[row],
      original=originals[row],
      ids=out.ids[row],
      prefix_length=int(out.prefix_lengths[row]),
      **{name: texts[row] for name, texts in by_sample[0].items()},
    )
    if num_samples > 1:
      result.sampled = [sample['decoded'][row] for sample in by_sample]
    pairs.append((prefixes[row], result))
  count = np.float32(len(pairs))
  metrics = NestedMap(num_decoded=(count, np.float32(1.0)))
  return metrics, pairs, NestedMap()


def _sample_texts(
  input_obj: Any, out: NestedMap, sample: int
) -> dict[str, Any]:
  """Returns, by name, one entry an example for one of its samples."""
  ids = out.output_ids[:, sample]
  lengths = out.decode_lengths[:, sample]
  new_lengths = lengths - out.prefix_lengths
  new_ids = np.zeros_like(ids)
  for row, (start, count) in enumerate(
    zip(out.prefix_lengths, new_lengths, strict=True)
  ):
    new_ids[row, :count] = ids[row, start : start + count]
  return {
    'decoded': input_obj.ids_to_strings(ids, lengths),
    'decoded_substr': input_obj.ids_to_strings(new_ids, new_lengths),
    'decoded_ids': ids,
    'logprobs': out.logprobs[:, sample],
    'decode_length': [int(length) for length in lengths],
  }
