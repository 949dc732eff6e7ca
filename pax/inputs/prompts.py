# SPDX-License-Identifier: Apache-2.0
"""Texts to be continued by a language model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pax.inputs import text
from praxis import py_utils

NestedMap = py_utils.NestedMap


class PromptLmInput(text.TextLmInput):
  """Prompts, in the vocabulary of the text that a model was trained on.

  A batch has `ids` and `paddings`, [B, seq_len]; longer prompts lose their end.
  The last batch is filled with rows of `eval_sample_weights` 0.
  """

  # The texts, in their order.
  prompts: Sequence[str] = ()

  def __post_init__(self):
    super().__post_init__()
    if not self.prompts:
      raise ValueError(f'prompts of {self.name!r} must be at least one text')

  def get_next(self) -> NestedMap:
    first = self._examples + self.infeed_host_index * self.batch_size
    if self._examples >= len(self.prompts):
      raise StopIteration
    self._examples += self.batch_size * self.num_infeed_hosts
    rows = self.strings_to_ids(self.prompts[first : first + self.batch_size])
    shape = (self.batch_size, self.seq_len)
    batch = NestedMap(
      ids=np.zeros(shape, np.int32),
      paddings=np.ones(shape, np.float32),
      eval_sample_weights=np.zeros(self.batch_size, np.float32),
    )
    for i, row in enumerate(rows):
      row = row[: self.seq_len]
      batch.ids[i, : len(row)] = row
      batch.paddings[i, : len(row)] = 0.0
      batch.eval_sample_weights[i] = 1.0
    return batch

  @property
  def num_batches(self) -> int:
    """Batches that hold all prompts."""
    global_batch = self.batch_size * self.num_infeed_hosts
    return -(-len(self.prompts) // global_batch)
