# SPDX-License-Identifier: Apache-2.0
# bazel: deps=//pax/tasks:experiments
# bazel: size=medium
"""Masked language models learn through the real program, either way."""

from __future__ import annotations

import math

import pytest

from tests.integration import binary
from tests.pax.tasks.lm import bert_records
from tests.testing import nightly

LENGTH, VOCAB, STEPS = 16, 256, 60
# The experiments as they are, made small.
SMALL = {
  'MAX_SEQ_LEN': LENGTH,
  'NUM_LAYERS': 1,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 32,
  'NUM_HEADS': 2,
  'VOCAB_SIZE': VOCAB,
  'PERCORE_BATCH_SIZE': 4,
  'ENABLE_BFLOAT16': False,
  'LEARNING_RATE': 0.02,
  'task.train.num_train_steps': STEPS,
  'task.train.eval_interval_steps': STEPS // 2,
  'task.train.summary_interval_steps': 10,
  'task.train.learner.optimizer.lr_schedule.warmup_steps': 1,
  'train_input.prepacking_batch_size': 32,
  'train_input.mlm_augmenter.vocab_size': VOCAB,
}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Where the documents are, as settings."""
  folder = tmp_path_factory.mktemp('records')
  for i in range(2):
    documents = bert_records.counting(40, LENGTH, seed=i)
    bert_records.write(folder / f'train-{i}', documents)
  held_out = bert_records.counting(6, LENGTH, seed=2)
  return {
    'TRAIN_FILES': f'{folder}/train-*',
    'EVAL_FILES': bert_records.write(folder / 'eval', held_out),
  }


@pytest.mark.parametrize(
  ('exp', 'settings', 'num_seqs'),
  [
    ('BertSpmdL4H128', {'MESH_SHAPE': [1, 2, 1]}, 6),
    # The mean over replicas.
    *nightly.cases(('BertAdamL4H128', {}, 3)),
  ],
)
def test_loss_falls_and_held_out_documents_are_evaluated(
  exp, settings, num_seqs, files, tmp_path
):
  words = [f'--set={k}={v}' for k, v in {**SMALL, **files, **settings}.items()]
  done = binary.run(
    f'tasks.lm.params.bert.{exp}', tmp_path, '--eval_on_test', *words, devices=2
  )
  assert done.returncode == 0, done.stderr
  losses = list(binary.losses(tmp_path).values())
  assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.3)
  assert losses[-1] < 0.7 * losses[0]
  held_out = [
    r for r in binary.records(tmp_path) if r['split'] == 'eval_test_test'
  ]
  assert [r['step'] for r in held_out] == [STEPS // 2, STEPS]
  # Six rows of one document each; what fills the batch is none.
  assert held_out[-1]['Metrics/num_seqs'] == num_seqs
  assert held_out[-1]['loss'] < held_out[0]['loss'] < losses[0]


def test_data_that_are_nowhere_are_asked_for(tmp_path):
  done = binary.run('tasks.lm.params.bert.BertAdamL4H128', tmp_path)
  assert done.returncode == 1
  assert '--set TRAIN_FILES=' in done.stderr
  assert 'Traceback' not in done.stderr
