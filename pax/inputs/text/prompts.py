# SPDX-License-Identifier: Apache-2.0
"""Prompts for a language model to continue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pax.inputs.records import text_files
from pax.inputs.text import packed_text
from praxis import py_utils

NestedMap = py_utils.NestedMap


class PromptLmInput(packed_text.TextLmInput):
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
    if isinstance(self.prompts, str):
      raise ValueError(
        f'prompts of {self.name!r} must be a sequence of texts, got the text'
        f' {self.prompts!r:.40}; write ({self.prompts!r:.40},)'
      )

  def get_next(self) -> NestedMap:
    """Returns the next PromptBatch.

    Raises:
      StopIteration: all prompts have been read.
    """
    batch_size = self.get_batch_size(self)
    first = self._examples + self.infeed_host_index * batch_size
    if self._examples >= len(self.prompts):
      raise StopIteration
    self._examples += self.get_global_batch_size(self)
    prompts = self.prompts[first : first + batch_size]
    shape = (batch_size, self.seq_len)
    batch = NestedMap(
      ids=np.zeros(shape, np.int32),
      paddings=np.ones(shape, np.float32),
      eval_sample_weights=np.zeros(batch_size, np.float32),
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
    return -(-len(self.prompts) // self.get_global_batch_size(self))


class PromptFileInput(PromptLmInput):
  """Batches of the prompts of a file.

  Each line of a file `*.jsonl` is an object with `prompt` or `text`, or a
  string; each line of any other file that is not empty is a prompt.
  """

  # The file; it replaces `prompts`.
  file: str = ''

  def __post_init__(self):
    self.prompts = read_prompts(self.file)
    super().__post_init__()


def read_prompts(file: str) -> tuple[str, ...]:
  """Returns the prompts of a file; see `PromptFileInput`.

  Raises:
    ValueError: The file does not exist, or a line has no prompt.
  """
  try:
    if file.endswith(text_files.JSON_LINES):
      return tuple(text_files.json_texts(file, ('prompt', 'text')))
    with open(file, encoding='utf-8') as f:
      return tuple(line.rstrip('\n') for line in f if line.strip())
  except FileNotFoundError as e:
    raise ValueError(
      f'the file of prompts {file!r} does not exist; it has a prompt per line,'
      f' or JSON objects with prompt if its name ends with'
      f' {text_files.JSON_LINES}'
    ) from e
