# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Jobs that evaluate several data sets of EVAL_DATA."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from pax import automl, jobs
from pax.tasks.lm.params import quickstart
from tests.testing import nightly


class Small(quickstart.TinyLm):
  """A small model of tokens that evaluates after each of two steps."""

  MODEL_DIMS = 16
  HIDDEN_DIMS = 16
  NUM_LAYERS = 1
  NUM_HEADS = 1
  TOKENIZER = 'bytes'
  VOCAB_SIZE = 259
  MAX_SEQ_LEN = 16
  BATCH_SIZE = 4
  EVAL_BATCH_SIZE = 4
  SAMPLE_PROMPT = ''
  NUM_TRAIN_STEPS = 2
  CHECKPOINT_EVERY_N_STEPS = 2
  EVAL_INTERVAL_STEPS = 1
  LEARNING_RATE = 0.1
  WARMUP_STEPS = 1


def _losses(job: pathlib.Path) -> dict[str, list[float]]:
  """Returns the losses of evaluations by the name of their input."""
  losses: dict[str, list[float]] = {}
  for line in (job / 'metrics.jsonl').read_text().splitlines():
    record = json.loads(line)
    prefix, _, name = record['split'].partition('eval_test_')
    if not prefix and 'loss' in record:
      losses.setdefault(name, []).append(record['loss'])
  return losses


def _write(path: pathlib.Path, seed: int, num_tokens: int) -> str:
  # Sets of other distributions have other losses.
  tokens = np.random.default_rng(seed).integers(0, 10 + 5 * seed, num_tokens)
  tokens.astype('u2').tofile(path)
  return str(path)


@pytest.mark.parametrize('max_batches', [*nightly.cases(None), 1])
def test_each_set_is_evaluated_as_if_alone(tmp_path, max_batches):
  files = [_write(tmp_path / f'{i}.bin', i, 150 + 40 * i) for i in range(4)]
  train, web, code, more_code = files
  sets = {'web': web, 'code.v2': {code: 0.5, more_code: 0.5}}

  class Several(Small):
    TRAIN_DATA = train
    EVAL_DATA = sets
    EVAL_MAX_BATCHES = max_batches

  seen = {}

  def record_metrics(metrics, mode, step, is_last, checkpoint_dir):
    seen[step] = dict(metrics)
    return False

  job = tmp_path / 'job'
  code = jobs.train_and_evaluate(
    Several(), job, early_stopping_fn=record_metrics
  )
  assert code == 0
  losses = _losses(job)
  assert sorted(losses) == ['code.v2', 'web']
  assert abs(losses['web'][-1] - losses['code.v2'][-1]) > 0.01
  for name, data in sets.items():
    assert len(losses[name]) == 2
    assert (job / 'summaries' / f'eval_test_{name}').is_dir()

    # A set of its own has the name of all sets without one.
    class Alone(Several):
      EVAL_DATA = data

    alone = tmp_path / f'alone_{name}'
    assert jobs.evaluate(Alone(), alone, restore_checkpoint_dir=job) == 0
    assert _losses(alone) == {'held_out': losses[name][-1:]}
    # Rewards and early stopping choose a set by its name.
    metric = automl.Metric.eval('total_loss', dataset_name=name)
    assert metric.get_value(seen[2]) == pytest.approx(losses[name][-1])
  together = tmp_path / 'together'
  assert jobs.evaluate(Several(), together, restore_checkpoint_dir=job) == 0
  assert _losses(together) == {
    name: values[-1:] for name, values in losses.items()
  }
