# SPDX-License-Identifier: Apache-2.0
"""Compares tokenizers and a batch with the vocabulary size of a language model.

JAX does not check indices: ids that the model does not have give wrong
embeddings and losses, without any error.
"""

from __future__ import annotations

import numpy as np

from pax import tasks_lib
from pax.programs.vocabulary_record import VocabularyError
from praxis import base_input

# Keys of batches of language models.
_IDS = ('ids', 'labels')


def check(
  task: tasks_lib.SingleTask, train_input: base_input.BaseInput
) -> None:
  """Checks the vocabularies of an input and its next batch, which stays so.

  Args:
    task: The task; models without a language model are not checked.
    train_input: Its training input.

  Raises:
    VocabularyError: A vocabulary of the input has more ids than the model, or
      an id of the batch is not in the vocabulary of the model.
  """
  size = getattr(getattr(task.model, 'lm_tpl', None), 'vocab_size', 0)
  if not size:
    return
  for feature, num_ids in train_input.vocabulary_sizes().items():
    if num_ids > size:
      raise VocabularyError(
        f'the vocabulary of {feature} in input {train_input.name!r} has'
        f' {num_ids} ids, but {_advice(size)}'
      )
  batch = train_input.peek_padded()
  if batch is None:
    return
  for name in _IDS:
    ids = np.asarray(batch.get(name, ()))
    if ids.size and ids.dtype.kind in 'iu' and ids.max() >= size:
      raise VocabularyError(
        f'a batch of input {train_input.name!r} has the id {ids.max()} in'
        f' {name!r}, but {_advice(size)}'
      )


def _advice(size: int) -> str:
  return (
    f'the vocabulary of the model has {size} ids: set VOCAB_SIZE of the'
    ' experiment (vocab_size of lm_tpl) to the size of the tokenizer, or choose'
    ' the tokenizer of the model'
  )
