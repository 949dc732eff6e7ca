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
  declared: int | None = None

  def vocabulary_sizes(self):
    return {} if self.declared is None else {'targets': self.declared}

  def get_next(self):
    ids = np.array([[1, 2], [self.largest, -1]], np.int32)
    return NestedMap(ids=ids, labels=ids[:, ::-1], paddings=0.0 * ids)


def check(largest, model, declared=None):
  inp = pax_fiddle.Config(
    Rows, name='rows', batch_size=2, largest=largest, declared=declared
  )
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


def test_a_tokenizer_with_more_ids_than_the_model():
  message = (
    "the vocabulary of targets in input 'rows' has 9 ids, but .* has 8 ids"
  )
  with pytest.raises(vocabulary_record.VocabularyError, match=message):
    check(7, language_model(8), declared=9)
  check(7, language_model(8), declared=8)
  check(7, types.SimpleNamespace(), declared=9)


def test_the_inputs_of_a_multi_input():
  children = {
    name: pax_fiddle.Config(Rows, name=name, batch_size=2, declared=size)
    for name, size in (('a', 5), ('b', 6))
  }
  multi = pax_fiddle.Config(base_input.MultiInput, input_to_params=children)
  sizes = multi.Instantiate().vocabulary_sizes()
  assert sizes == {'a.targets': 5, 'b.targets': 6}
