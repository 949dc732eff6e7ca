# SPDX-License-Identifier: Apache-2.0
"""Outputs of models on SeqIO inputs: their keys, and who writes them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pax.inputs.seqio import seqio_input
from praxis import base_input, py_utils, pytypes

EVAL_METRICS_PREFIX = 'scoring_eval'
DECODE_METRICS_PREFIX = 'decoder'

_ID_KEYS = (
  py_utils.INDEX_WITHIN_SHARD_KEY,
  py_utils.SHARD_INDEX_KEY,
  py_utils.NUM_SHARDS_KEY,
)


class MetricType(enum.Enum):
  """The outputs that metrics of a SeqIO task are computed from."""

  # Decoded examples.
  PREDICT = 1
  # Scores of targets.
  SCORE = 2


def select_split(task: str, split_name: str | Callable[[str], str]) -> str:
  """Returns the split of a task; a function chooses it by the task's name."""
  return split_name(task) if callable(split_name) else split_name


def is_packing_on(fc: Any) -> bool:
  """Returns whether a feature converter packs several examples into a row."""
  return bool(getattr(fc, 'pack', False))


def should_process_outputs(inp: base_input.BaseInput) -> bool:
  """Returns whether this process handles outputs of a SeqIO input."""
  is_seqio = isinstance(inp, seqio_input.SeqIOInput)
  return is_seqio and jax.process_index() == 0


def maybe_update_decode_output_keys(
  process_decode_output: Sequence[tuple[str, Any]],
  decode_out: pytypes.NestedMap,
) -> Sequence[tuple[str, Any]]:
  """Returns the outputs of `process_decode_out` keyed by the IDs of examples.

  They are unchanged if the batch has no IDs.

  Args:
    process_decode_output: (key, output) of each example, without padding.
    decode_out: Output of `decode`: a batch, whose padding has IDs of -1.

  Raises:
    ValueError: An ID is incomplete.
    RuntimeError: The number of outputs differs from that of the examples.
  """
  ids, _ = py_utils.filter_by_matching_keys(
    decode_out, [py_utils.PROVENANCE_PREFIX]
  )
  if not ids:
    return process_decode_output
  keys = []
  for example in py_utils.tree_unstack(ids, 0):
    key = py_utils.get_enumeration_id(example)
    if key is None:
      raise ValueError(
        f'the ID of an example must have {list(_ID_KEYS)}, got {example}'
      )
    if any(example[name] != -1 for name in _ID_KEYS):
      keys.append(key)
  if len(keys) != len(process_decode_output):
    raise RuntimeError(
      'The length of enum keys != num kv-pairs returned by '
      f'model.process_decode_out ({len(keys)} != '
      f'{len(process_decode_output)}); it must leave out examples with '
      'eval_sample_weights of 0'
    )
  pairs = zip(keys, process_decode_output, strict=True)
  return [(key, output) for key, (_, output) in pairs]
