# SPDX-License-Identifier: Apache-2.0
"""Constants of rewards, by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=medium
from __future__ import annotations

import json

import numpy as np
import pytest

from pax.runner import overrides
from pax.tasks.lm.params import huggingface
from tests.integration import binary
from tests.pax.huggingface import job_runs, reference_models


def sum_of_codes(examples, responses):
  """A reward that differs for almost all responses."""
  del examples
  return [float(sum(map(ord, x))) for x in responses]


def _train(folder, *settings):
  """Trains a model of bytes for two steps; returns the records of the log."""
  source = reference_models.write_byte_model(
    folder / 'source', 'qwen3', num_layers=1
  )
  lines = [{'prompt': f'{i}'} for i in range(4)]
  (folder / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  words = [
    'OBJECTIVE=rewards',
    f'REWARDS={__name__}:sum_of_codes',
    f'TRAIN_FILES={folder}/prompts.jsonl',
    'BATCH_SIZE=8',
    'NUM_SAMPLES=4',
    'MAX_PROMPT_LEN=8',
    'NUM_TRAIN_STEPS=2',
    'WARMUP_STEPS=0',
    'LEARNING_RATE=0.01',
    'EVAL_ON_TEST=False',
    'task.train.summary_interval_steps=1',
    *settings,
  ]
  job = folder / 'job'
  assert job_runs.run('Qwen3', source, job, *(f'--set={x}' for x in words)) == 0
  return [x for x in binary.records(job) if x['split'] == 'train']


def _experiment(*settings):
  rewards = ['OBJECTIVE=rewards', 'TRAIN_FILES=a.jsonl', 'REWARDS=a:b']
  constants = overrides.parse([*rewards, *settings])
  return overrides.set_constants(huggingface.Qwen3, constants)()


def test_the_program_and_the_model_have_the_constants():
  experiment = _experiment(
    'ROLLOUT_TEMPERATURE=3',
    'ROLLOUT_TOP_K=9',
    'ROLLOUT_TOP_P=0.5',
    'GRPO_LOSS_MEAN=max_length',
  )
  [program] = experiment.train_programs()
  assert (program._top_k, program._top_p) == (9, 0.5)
  model_p = experiment.task().model
  assert (model_p.temperature, model_p.loss_mean) == (3, 'max_length')


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('settings', 'is_greedy'),
  [
    (['ROLLOUT_TOP_P=0.000001', 'GRPO_LOSS_MEAN=max_length'], True),
    (['ROLLOUT_TEMPERATURE=1e-6'], True),
    (['ROLLOUT_TEMPERATURE=3', 'ROLLOUT_TOP_K=1'], True),
    (
      ['ROLLOUT_TEMPERATURE=1.5', 'ROLLOUT_TOP_K=9', 'ROLLOUT_TOP_P=0.9'],
      False,
    ),
  ],
)
def test_constants_determine_the_samples(tmp_path, settings, is_greedy):
  records = _train(tmp_path, *settings)
  # Greedy samples of a prompt are equal.
  shares = [x['Metrics/prompts_with_equal_rewards'] for x in records]
  assert shares == [float(is_greedy)] * 2
  assert np.isfinite([x['loss'] for x in records]).all()


@pytest.mark.nightly
def test_a_step_of_truncated_samples_learns_nothing(tmp_path):
  # Neither of two random tokens is eos.
  records = _train(
    tmp_path,
    'MAX_SEQ_LEN=10',
    'GRPO_MASKS_TRUNCATED=True',
    'ROLLOUT_EPOCHS=2',
    'GRPO_BETA=0.1',
  )
  for record in records:
    assert record['Metrics/truncated'] == 1.0
    assert record['loss'] == 0.0
    assert record['learning/raw_grad_norm_scalar'] == 0.0
  assert records[0]['Metrics/prompts_with_equal_rewards'] == 0.0


def test_a_model_that_does_not_end_responses_has_only_truncated_ones(tmp_path):
  config = {**huggingface.Qwen3.CONFIG}
  experiment = _experiment(f'MODEL_DIR={tmp_path}', 'GRPO_MASKS_TRUNCATED=True')
  (tmp_path / 'config.json').write_text(json.dumps(config))
  experiment.validate()
  del config['eos_token_id']
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match='needs eos_token_id .* got none'):
    experiment.validate()
