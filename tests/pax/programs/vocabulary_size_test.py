# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Ids that the vocabulary of a language model does not have are refused."""

from __future__ import annotations

import types

import numpy as np
import pytest

from pax.programs import vocabulary_record, vocabulary_size
from praxis import base_input, pax_fiddle
from praxis.pytypes import NestedMap


class Rows(base_input.BaseInput):
  """One batch of the largest id."""

  largest: int = 0

  def get_next(self):
    ids = np.array([[1, 2], [self.largest, -1]], np.int32)
    return NestedMap(ids=ids, labels=ids[:, ::-1], paddings=0.0 * ids)


def check(largest, model):
  inp = pax_fiddle.Config(Rows, name='rows', batch_size=2, largest=largest)
  built = inp.Instantiate()
  vocabulary_size.check(types.SimpleNamespace(model=model), built)
  return built


def language_model(size):
  return types.SimpleNamespace(lm_tpl=pax_fiddle.Config(dict, vocab_size=size))


def test_ids_of_another_vocabulary():
  message = (
    "input 'rows' has the id 8 in 'ids', but .* has 8 ids: set VOCAB_SIZE"
  )
  with pytest.raises(vocabulary_record.VocabularyError, match=message):
    check(8, language_model(8))


def test_ids_of_the_vocabulary():
  inp = check(7, language_model(8))
  assert inp.get_next_padded().ids.max() == 7
  check(100, types.SimpleNamespace())
