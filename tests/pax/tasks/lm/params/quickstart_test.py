# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Settings of the quickstart; tests/integration trains it."""

from __future__ import annotations

import math

import pytest

from pax import experiment_registry
from pax.inputs.tokens import tokenizers
from pax.runner import experiments
from pax.tasks.lm.params import huggingface, quickstart

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


@pytest.mark.parametrize('experiment', [quickstart.TinyLm, huggingface.Qwen3])
def test_constants_reach_the_optimizer(experiment):
  constants = {
    'LEARNING_RATE': 0.5,
    'ADAM_BETA1': 0.8,
    'ADAM_BETA2': 0.6,
    'ADAM_EPSILON': 1e-7,
    'ADAM_CLIP_THRESHOLD': -1.0,
    'CLIP_GRADIENT_NORM_TO_VALUE': 3.0,
  }
  optimizer = type('Mine', (experiment,), constants)().task().train.learner
  for name, value in constants.items():
    field = name.removeprefix('ADAM_').lower()
    assert getattr(optimizer.optimizer, field) == value


def _factors(num_steps: int, **constants: object) -> list[float]:
  cls = type('Mine', (quickstart.TinyLm,), constants)
  schedule = cls().task().train.learner.optimizer.lr_schedule.Instantiate()
  return [float(schedule.value_at(step)) for step in range(num_steps)]


@pytest.mark.parametrize('decay_steps', [None, 3])
@pytest.mark.parametrize(
  ('name', 'decay'),
  [
    ('cosine', lambda u: (1 + math.cos(math.pi * u)) / 2),
    ('linear', lambda u: 1 - u),
  ],
)
def test_the_learning_rate_decays_in_the_last_steps(name, decay, decay_steps):
  found = _factors(
    12,
    LR_SCHEDULE=name,
    WARMUP_STEPS=4,
    NUM_TRAIN_STEPS=10,
    LR_DECAY_STEPS=decay_steps,
    LR_MIN_RATIO=0.2,
  )
  num_decay = decay_steps or 6
  want = [0.0, 0.25, 0.5, 0.75] + [1.0] * (6 - num_decay)
  want += [0.2 + 0.8 * decay(i / num_decay) for i in range(num_decay)]
  assert found == pytest.approx([*want, 0.2, 0.2])


def test_a_constant_learning_rate_stays_after_the_warm_up():
  factors = _factors(
    9, LR_SCHEDULE='constant', WARMUP_STEPS=2, NUM_TRAIN_STEPS=6
  )
  assert factors == [0.0, 0.5] + 7 * [1.0]


@pytest.mark.parametrize(
  ('constants', 'message'),
  [
    ({'LR_MIN_RATIO': 2.0}, 'LR_MIN_RATIO of Mine .* from 0 to 1, got 2.0'),
    ({'LR_SCHEDULE': 'wsd'}, 'of Mine must be one of cosine, linear, constant'),
    ({'LR_DECAY_STEPS': 0}, 'LR_DECAY_STEPS of Mine .* at least 1'),
    ({'LR_DECAY_STEPS': 551}, 'must be at most 550, NUM_TRAIN_STEPS -'),
    (
      {'LR_SCHEDULE': 'constant', 'LR_DECAY_STEPS': 5},
      'LR_DECAY_STEPS must be None with LR_SCHEDULE=constant',
    ),
    ({'ADAM_EPSILON': -1e-8}, 'ADAM_EPSILON of Mine .* at least 0, or None'),
    ({'WEIGHT_DECAY': -0.1}, 'WEIGHT_DECAY of Mine .* at least 0, or None'),
    ({'CLIP_GRADIENT_NORM_TO_VALUE': -1.0}, 'TO_VALUE of Mine .* at least 0'),
  ],
)
def test_wrong_settings_of_the_optimizer_are_refused(constants, message):
  experiment = type('Mine', (quickstart.TinyLm,), constants)()
  with pytest.raises(ValueError, match=message):
    experiments.validate(experiment)
    experiment.task()


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
