# SPDX-License-Identifier: Apache-2.0
# bazel: deps=//pax/tasks:experiments
# bazel: size=medium
"""GPT-3 as a pipeline learns through the real program, on made-up data."""

from __future__ import annotations

import math

import pytest

from tests.integration import binary

_VOCAB = 128
# The experiment that upstream's README trains on 64 devices, made small.
_SMALL = {
  'SYNTHETIC_DATA': True,
  'NUM_STAGES': 2,
  'ICI_MESH_SHAPE': [2, 1, 1, 2],
  'MICROBATCH_SIZE': 2,
  'PERCORE_BATCH_SIZE': 1,
  'MAX_SEQ_LEN': 16,
  'TRAINABLE_PE_MAX_SEQ_LEN': 16,
  'VOCAB_SIZE': _VOCAB,
  'NUM_LAYERS': 2,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 32,
  'NUM_HEADS': 2,
  'DIMS_PER_HEAD': 8,
  'LEARNING_RATE': 0.05,
  'LR_COS_WARMUP': 1,
  'LR_COS_DECAY_START': 2,
  'EVAL_INTERVAL_STEPS': 10,
  'task.train.num_train_steps': 20,
}
_NAME = 'tasks.lm.params.c4.C4SpmdPipelineGpt3SmallAdam64Replicas'


def test_loss_falls_until_the_target_is_met(tmp_path):
  words = [f'--set={name}={value}' for name, value in _SMALL.items()]
  done = binary.run(_NAME, tmp_path, '--eval_on_test', *words, devices=4)
  assert done.returncode == 0, done.stderr
  losses = binary.losses(tmp_path)
  assert losses[min(losses)] == pytest.approx(math.log(_VOCAB), rel=0.1)
  # The validation set is one made-up batch: its log-perplexity is soon below
  # TARGET_LOG_PPLX, which ends training.
  assert max(losses) <= 10
  (evaluated,) = [
    r
    for r in binary.records(tmp_path)
    if r['split'] == 'eval_test_C4Validation'
  ]
  assert evaluated['step'] == 10
  assert evaluated['Metrics/log_pplx'] < 2.69


def test_data_that_are_nowhere_are_asked_for(tmp_path):
  words = ['--set=MAX_SEQ_LEN=16', '--set=ICI_MESH_SHAPE=[1,1,1]']
  done = binary.run('tasks.lm.params.c4.C4SpmdAdam', tmp_path, *words)
  assert done.returncode == 1
  assert '`pip install seqio`' in done.stderr
  assert '--set SYNTHETIC_DATA=True' in done.stderr
