# SPDX-License-Identifier: Apache-2.0
"""Prompts for a language model to continue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pax.inputs import batch_types, text
from praxis import py_utils

NestedMap = py_utils.NestedMap


class PromptLmInput(text.TextLmInput):
  """Batches of prompts, in the vocabulary of a training corpus.

  Prompts longer than `seq_len` are truncated. The last batch is padded with
  rows whose `eval_sample_weights` are 0.
  """

  # The prompts, in order.
  prompts: Sequence[str] = ()

  def __post_init__(self):
    super().__post_init__()
    if not self.prompts:
      raise ValueError(f'prompts of {self.name!r} must be at least one text')

  def get_next(self) -> batch_types.PromptBatch:
    """Returns the next batch.

    Raises:
      StopIteration: all prompts have been read.
    """
    first = self._examples + self.infeed_host_index * self.batch_size
    if self._examples >= len(self.prompts):
      raise StopIteration
    self._examples += self.batch_size * self.num_infeed_hosts
    prompts = self.prompts[first : first + self.batch_size]
    shape = (self.batch_size, self.seq_len)
    batch = NestedMap(
      ids=np.zeros(shape, np.int32),
      paddings=np.ones(shape, np.float32),
      eval_sample_weights=np.zeros(self.batch_size, np.float32),
    )
    for i, ids in enumerate(self.strings_to_ids(prompts)):
      ids = ids[: self.seq_len]
      batch.ids[i, : len(ids)] = ids
      batch.paddings[i, : len(ids)] = 0.0
      batch.eval_sample_weights[i] = 1.0
    return batch

  @property
  def num_batches(self) -> int:
    """Number of batches of all prompts."""
    global_batch = self.batch_size * self.num_infeed_hosts
    return -(-len(self.prompts) // global_batch)
