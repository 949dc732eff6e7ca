# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Arguments of early stopping functions, and the search space."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.programs.running_mode import RunningMode
from paxml import tuning_lib


def test_the_function_is_told_by_name():
  calls = []

  def stop(*arguments):
    calls.append(arguments)
    return True

  assert tuning_lib.should_early_stop(
    stop,
    7,
    False,
    train_weighted_scalars={'loss': (1.0, 8)},
    eval_train_metrics={'loss': 2.0},
    eval_metrics=tuning_lib.EvalMetrics(
      metrics_list=[{'loss': 3.0}, None],
      scoring_metrics_list=[None, {'f1': 4.0}],
      steps_per_sec=5.0,
      input_names=['a', 'b'],
    ),
    decode_metrics=tuning_lib.DecodeMetrics(
      processed_metrics_list=[{'bleu': 6.0}],
      steps_per_sec=7.0,
      input_names=['c'],
    ),
    num_params=8.0,
    train_steps_per_sec=9.0,
    checkpoint_path='somewhere',
  )
  ((metrics, mode, *others),) = calls
  assert metrics == {
    'train/loss': 1.0,
    'eval_train/metrics/loss': 2.0,
    'eval_test_a/metrics/loss': 3.0,
    'eval_test_b/scoring_eval/f1': 4.0,
    'decode_test_c/bleu': 6.0,
    'eval_steps_per_sec': 5.0,
    'decode_steps_per_sec': 7.0,
    'num_params': 8.0,
    'train_steps_per_sec': 9.0,
  }
  assert mode.has_train and mode.has_eval and mode.has_decode
  assert others == [7, False, 'somewhere']


def test_losses_of_a_step_are_not_looked_at_for_nothing():
  calls = []
  scalars = {'loss': (1.0, 1)}
  for is_last in (False, True):
    assert not tuning_lib.should_early_stop(
      lambda metrics, *others: calls.append(metrics), 1, is_last, scalars
    )
  assert calls == [{}, {'train/loss': 1.0}]
  assert not tuning_lib.should_early_stop(None, 1, True, scalars)


def test_training_metrics_of_every_step(monkeypatch):
  calls = []
  name = 'PAXML_EARLY_STOP_ALWAYS_AGGREGATE_TRAIN_METRICS'
  pairs = {'loss': [(2.0, 1.0), (4.0, 3.0)], 'acc': (np.ones(2), np.ones(2))}
  for value in ('true', ''):
    monkeypatch.setenv(name, value)
    assert not tuning_lib.should_early_stop(
      lambda metrics, *others: calls.append(metrics), 1, False, pairs
    )
  assert calls == [{'train/loss': 3.5, 'train/acc': 1.0}, {}]


@pytest.mark.parametrize(
  ('kinds', 'step', 'to_end', 'is_last'),
  [
    ('train', 99, False, False),
    ('train', 100, False, True),
    ('train eval', 91, False, True),
    ('train eval', 90, False, False),
    ('train eval', 91, True, False),
    ('train decode', 81, False, True),
    # Another job has nothing new to look at before the next checkpoint.
    ('eval', 75, False, True),
    ('eval', 70, False, False),
  ],
)
def test_the_last_of_a_kind(kinds, step, to_end, is_last):
  mode = RunningMode.detect(
    'train' in kinds, 'eval' in kinds, 'decode' in kinds
  )
  found = tuning_lib.is_last_checkpoint(mode, step, 100, 10, 20, 30, to_end)
  assert found is is_last


def test_texts_get_shorter_and_come_back():
  value = {'a': [1, 2.5, None] * 100}
  text = tuning_lib.compressed(value)
  assert len(text) < len(json.dumps(value))
  assert json.loads(tuning_lib.uncompressed(text)) == value
