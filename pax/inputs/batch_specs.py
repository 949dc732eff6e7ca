# SPDX-License-Identifier: Apache-2.0
"""Shapes of batches of text, without data."""

from __future__ import annotations

import jax
import numpy as np

from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap
_SHARD_KEYS = (py_utils.SHARD_INDEX_KEY, py_utils.NUM_SHARDS_KEY)


def rows_per_host(batch_size: int) -> int:
  """Returns the rows of a global batch that each host reads.

  Raises:
    ValueError: the number of hosts does not divide the batch size.
  """
  num_hosts = jax.process_count()
  if batch_size < 1 or batch_size % num_hosts:
    raise ValueError(
      f'the global batch size must be a multiple of the {num_hosts} hosts, got'
      f' {batch_size}; e.g. {max(batch_size // num_hosts, 1) * num_hosts}'
    )
  return batch_size // num_hosts


class RowSpecsProvider(base_input.BaseInputSpecsProvider):
  """Provides the specs of batches of rows of equal length."""

  # Rows per batch of a host, B.
  batch_size: int = 0
  # Length of a row, T.
  seq_len: int = 0
  # Names of int32 and float32 features of shape [B, T].
  ints: tuple[str, ...] = ()
  floats: tuple[str, ...] = ()
  # Names of float32 features of shape [B].
  weights: tuple[str, ...] = ()
  # Whether batches have the ids of examples, as those of SeqIOInput.
  has_example_ids: bool = False

  def get_input_specs(self) -> NestedMap:
    shape = (self.batch_size, self.seq_len)
    features: list[tuple[tuple[str, ...], tuple[int, ...], type]] = [
      (self.ints, shape, np.int32),
      (self.floats, shape, np.float32),
      (self.weights, shape[:1], np.float32),
    ]
    if self.has_example_ids:
      features += [
        ((py_utils.INDEX_WITHIN_SHARD_KEY,), shape[:1], np.int64),
        (_SHARD_KEYS, shape[:1], np.int32),
      ]
    return NestedMap(
      {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for names, shape, dtype in features
        for name in names
      }
    )
