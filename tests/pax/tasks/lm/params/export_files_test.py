# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Exports of jobs that began at random, without another folder."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest

from pax import jobs
from pax.checkpoints.types import CheckpointError
from pax.tasks.lm.params import huggingface, published_configs
from tests.pax.huggingface import convert_command

SIZES = {
  'hidden_size': 16,
  'intermediate_size': 16,
  'num_hidden_layers': 1,
  'num_attention_heads': 2,
  'num_key_value_heads': 1,
  'head_dim': 8,
  'vocab_size': 384,
  'eos_token_id': 257,
}


class Small(huggingface.Llama3):
  """A small Llama on tokens."""

  CONFIG = published_configs.LLAMA3 | SIZES
  NUM_TRAIN_STEPS = 2
  BATCH_SIZE = 2
  MAX_SEQ_LEN = 16
  SAMPLE_PROMPT = ''
  LEARNING_RATE = 0.01
  WARMUP_STEPS = 1


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp('data') / 'tokens.bin'
  np.random.default_rng(0).integers(0, 256, 400).astype('u2').tofile(path)
  return str(path)


def _train(
  job: pathlib.Path, init_from: str | None = None, **constants: object
) -> None:
  experiment = type('Mine', (Small,), constants)()
  assert jobs.train_and_evaluate(experiment, job, init_from=init_from) == 0


@pytest.fixture(scope='module')
def trained(tmp_path_factory, data) -> pathlib.Path:
  job = tmp_path_factory.mktemp('trained') / 'job'
  _train(job, TRAIN_DATA=data)
  return job


def _config(folder: pathlib.Path) -> dict[str, object]:
  return json.loads((folder / 'config.json').read_text())


def test_an_export_needs_no_other_folder(tmp_path, data, trained, capsys):
  job, folder = trained, tmp_path / 'folder'
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(Small.CONFIG))
  outputs = tmp_path / 'own', tmp_path / 'given'
  convert_command.run(capsys, 'pax-to-hf', job, outputs[0])
  convert_command.run(
    capsys, 'pax-to-hf', job, outputs[1], f'--config={folder}'
  )
  own, given = map(convert_command.contents, outputs)
  assert sorted(own) == ['config.json', 'model.safetensors']
  assert own == given
  assert _config(outputs[0]) == Small.CONFIG | {'dtype': 'float32'}
  # The export initializes a job, which exports the same.
  second, again = tmp_path / 'second', tmp_path / 'again'
  source = f'hf:{outputs[0]}'
  _train(second, source, TRAIN_DATA=data, LEARNING_RATE=0.0)
  convert_command.run(capsys, 'pax-to-hf', second, again)
  assert convert_command.contents(again) == own


def test_a_restart_has_the_settings_of_its_experiment(tmp_path, data, trained):
  job = tmp_path / 'job'
  shutil.copytree(trained, job)
  longer = Small.CONFIG | {'rope_theta': 1e6}
  _train(job, TRAIN_DATA=data, CONFIG=longer, NUM_TRAIN_STEPS=3)
  assert _config(job / 'huggingface') == longer
  # Variables of other shapes are refused, and the file stays that of them.
  wider = longer | {'hidden_size': 32}
  with pytest.raises(CheckpointError, match='saved by another model'):
    _train(job, TRAIN_DATA=data, CONFIG=wider, NUM_TRAIN_STEPS=4)
  assert _config(job / 'huggingface') == longer
  # A job that begins with these variables writes its own settings.
  other = tmp_path / 'other'
  _train(other, str(job), TRAIN_DATA=data)
  assert _config(other / 'huggingface') == Small.CONFIG


def test_files_of_tokenizers(tmp_path):
  def files(**constants):
    found = dict(type('Mine', (Small,), constants)().export_files())
    assert json.loads(found.pop('config.json')) == Small.CONFIG
    return {
      name: str(file.relative_to(tmp_path)) for name, file in found.items()
    }

  for name in ('both', 'pieces'):
    folder = tmp_path / name
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(Small.CONFIG))
    for file in (
      'README.md',
      'chat_template.jinja',
      'generation_config.json',
      'tokenizer.model',
      'tokenizer_config.json',
      'tokens.npy',
    ):
      (folder / file).touch()
  (tmp_path / 'both/tokenizer.json').touch()
  assert files() == files(TOKENIZER='bytes') == {}
  settings = ['chat_template.jinja', 'generation_config.json']
  own = {
    name: [*settings, 'tokenizer.model', 'tokenizer_config.json']
    for name in ('both', 'pieces')
  }
  own['both'].insert(2, 'tokenizer.json')
  for name, want in own.items():
    folder = str(tmp_path / name)
    assert files(MODEL_DIR=folder) == {x: f'{name}/{x}' for x in want}
    assert files(MODEL_DIR=folder, TOKENIZER='bytes') == {
      x: f'{name}/{x}' for x in settings
    }
  pieces = str(tmp_path / 'words.model')
  assert files(TOKENIZER=pieces) == {'tokenizer.model': 'words.model'}
  assert files(TOKENIZER=str(tmp_path / 'both/tokenizer.json')) == {
    x: f'both/{x}' for x in own['both'][2:]
  }


def test_settings_are_those_of_json():
  config = Small.CONFIG | {'dtype': np.float32}
  with pytest.raises(
    ValueError, match='CONFIG must have values of JSON, .*typ'
  ):
    type('Mine', (Small,), {'CONFIG': config})().export_files()


def test_a_t5_has_its_settings():
  found = huggingface.T5().export_files()
  assert json.loads(found['config.json']) == published_configs.T5
  assert len(found) == 1
