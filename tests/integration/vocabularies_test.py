# SPDX-License-Identifier: Apache-2.0
"""A job keeps its tokenizer: later runs with another one are refused."""

# bazel: size=large
from __future__ import annotations

import json

import pytest

from tests.integration import binary

EXP = 'pax.tasks.lm.params.quickstart.TinyLm'
SMALL = (
  '--set=NUM_PIECES=300',
  '--set=VOCAB_SIZE=512',
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=16',
  '--set=HIDDEN_DIMS=16',
  '--set=NUM_HEADS=1',
  '--set=MAX_SEQ_LEN=32',
  '--set=DECODE_SEQ_LEN=16',
  '--set=BATCH_SIZE=4',
  '--set=EVAL_BATCH_SIZE=4',
  '--set=HELD_OUT_PERCENT=20',
  '--set=SAMPLE_PROMPT=',
)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = tmp_path / 'corpus'
  folder.mkdir()
  for i in range(30):
    text = f'def f{i}(x):\n  return [x + {i} for _ in range({i})]\n' * 9
    (folder / f'{i:02}.py').write_text(text)
  return folder


@pytest.mark.nightly
def test_a_job_keeps_its_tokenizer(tmp_path, corpus):
  job = tmp_path / 'job'
  words = [*SMALL, f'--set=TRAIN_FILES={corpus}']

  def run(*more: str, job_log_dir=job) -> str:
    done = binary.run(EXP, job_log_dir, *words, *more)
    lines = done.stderr.splitlines()
    return '' if done.returncode == 0 else f'{done.returncode} {lines[-1]}'

  assert run('--set=task.train.num_train_steps=2') == ''
  record = json.loads((job / 'vocabularies.json').read_text())
  old = record['vocabularies']['tokens']

  (corpus / 'added.py').write_text('while True:\n  print("more")\n' * 40)
  more_steps = '--set=task.train.num_train_steps=4'
  for mode in ('--mode=train', '--mode=eval'):
    message = run(more_steps, mode)
    assert message.startswith('1 pax: error: the vocabulary of tokens')
    assert f'trained with {old["digest"]} ({old["source"]})' in message
  elsewhere = f'--restore_checkpoint_dir={job}'
  message = run('--mode=decode_once', elsewhere, job_log_dir=tmp_path / 'other')
  assert f'tokenizer.model_file={old["source"]}' in message
  assert binary.checkpoint_names(job)[-1] == 'checkpoint_00000002'

  # The documented next step.
  keeps_old = [
    f'--set={field}.tokenizer.model_file={old["source"]}'
    for field in ('train_input', 'eval_inputs[0]')
  ]
  message = run(more_steps, *keeps_old)
  assert message.startswith("1 pax: error: the data of input 'train' must be")
  assert 'files was 30 files' in message and 'is 31 files' in message
  assert run(more_steps, *keeps_old, '--accept_changed_data') == ''
  log = (job / 'logs' / 'train_0.log').read_text()
  accepted = "The changed data are accepted: input 'train': files was 30 files"
  assert accepted in log
  assert json.loads((job / 'vocabularies.json').read_text()) == record
