# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Settings of the quickstart; tests/integration trains it."""

from __future__ import annotations

import pytest

from pax import experiment_registry
from pax.inputs.tokens import tokenizers
from pax.tasks.lm.params import quickstart

EXPERIMENTS = [
  quickstart.TinyLm,
  quickstart.TinyLmBytes,
  quickstart.TinyLmPmap,
]


@pytest.mark.parametrize('experiment', EXPERIMENTS)
def test_it_is_registered(experiment):
  name = f'tasks.lm.params.quickstart.{experiment.__name__}'
  assert experiment_registry.get(name) is experiment


@pytest.mark.parametrize('experiment', EXPERIMENTS)
def test_one_input_trains_and_one_is_held_out(experiment):
  train, held_out = experiment().datasets()
  assert (train.is_training, held_out.is_training) == (True, False)
  assert held_out.held_out and not train.held_out
  assert held_out.reset_for_eval
  assert train.held_out_percent == held_out.held_out_percent > 0
  assert train.seq_len == held_out.seq_len
  assert (train.name, held_out.name) == ('train', 'held_out')


def test_constants_reach_the_task():
  class Small(quickstart.TinyLm):
    NUM_TRAIN_STEPS = 77
    TRAIN_FILES = 'a/*.txt'

  task, [train, _] = Small().task(), Small().datasets()
  assert task.train.num_train_steps == 77
  assert task.train.learner.optimizer.lr_schedule.decay_end == 77
  assert train.files == 'a/*.txt'


@pytest.mark.parametrize('experiment', EXPERIMENTS)
def test_the_vocabulary_holds_the_ids(experiment):
  experiment().validate()
  lm = experiment().task().model.lm_tpl
  for data in experiment().datasets():
    if data.tokenizer.cls is tokenizers.ByteTokenizer:
      assert lm.vocab_size == tokenizers.ByteTokenizer.vocab_size
    else:
      assert lm.vocab_size == data.tokenizer.num_pieces


def test_a_vocabulary_that_is_too_small_is_refused():
  class Pieces(quickstart.TinyLmBytes):
    NUM_PIECES = 512

  with pytest.raises(ValueError, match='--set VOCAB_SIZE=512'):
    Pieces().validate()
