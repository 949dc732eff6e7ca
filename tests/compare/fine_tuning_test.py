# SPDX-License-Identifier: Apache-2.0
"""The documented fine-tuning, on a tokenizer.json and a file of JSON lines."""

from __future__ import annotations

import json
import pathlib

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tests.integration import binary
from tests.pax.huggingface import reference_models

TEXTS = [f'Text {i} of {i * i} about models.' for i in range(200)]
EXP = 'pax.tasks.lm.params.huggingface.Qwen3'


def write_model(folder: pathlib.Path) -> None:
  """Writes a tiny model with a byte-level BPE tokenizer."""
  reference_models.write_text_model(folder, 'qwen3', TEXTS)
  (folder / 'tokenizer.model').unlink()
  config = json.loads((folder / 'config.json').read_text())
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=config['vocab_size'],
    special_tokens=['<unk>', '<s>', '</s>'],
    show_progress=False,
  )
  tokenizer.train_from_iterator(TEXTS, trainer)
  tokenizer.save(str(folder / 'tokenizer.json'))


def test_one_command_tunes_a_model_on_json_lines(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  write_model(tmp_path / 'qwen3')
  lines = [json.dumps({'text': text}) for text in TEXTS]
  (tmp_path / 'text.jsonl').write_text('\n'.join(lines))
  completed = binary.run(
    EXP,
    tmp_path / 'job',
    f'--set=MODEL_DIR={tmp_path}/qwen3',
    f'--init_from=hf:{tmp_path}/qwen3',
    f'--set=TRAIN_DATA={tmp_path}/text.jsonl',
    '--set=NUM_TRAIN_STEPS=40',
    '--set=BATCH_SIZE=4',
    '--set=MAX_SEQ_LEN=32',
    '--set=LEARNING_RATE=0.01',
    '--set=task.train.summary_interval_steps=1',
  )
  assert completed.returncode == 0, completed.stderr
  record = json.loads((tmp_path / 'job' / 'vocabularies.json').read_text())
  source = record['vocabularies']['tokens']['source']
  assert source == str(tmp_path / 'qwen3' / 'tokenizer.json')
  losses = list(binary.losses(tmp_path / 'job').values())
  assert losses[-1] < losses[0] - 0.5
  published = tmp_path / 'job' / 'huggingface' / 'tokenizer.json'
  assert (
    published.read_bytes() == (tmp_path / 'qwen3/tokenizer.json').read_bytes()
  )
