# SPDX-License-Identifier: Apache-2.0
"""Training and decoding of models of Hugging Face by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: env=PAX_CHECK_SHAPES=0
# bazel: size=medium
from __future__ import annotations

import json

import numpy as np
import pytest

from pax import experiment_registry, io_utils, main
from pax.huggingface import families, model_folder, safetensors
from pax.tasks.lm.params import huggingface
from tests.pax.huggingface import job_runs, loaded_models, reference_models

_FAMILIES = {
  'Llama2': 'llama',
  'Llama3': 'llama',
  'Mistral': 'mistral',
  'Qwen2': 'qwen2',
  'Qwen3': 'qwen3',
  'Gemma': 'gemma',
  'Gemma2': 'gemma2',
  'Gpt2': 'gpt2',
}


@pytest.mark.parametrize('name', _FAMILIES)
def test_experiments_have_published_sizes(name):
  experiment = experiment_registry.get(f'tasks.lm.params.huggingface.{name}')
  config = experiment.CONFIG
  assert config['model_type'] == _FAMILIES[name]
  assert config['eos_token_id'] < config['vocab_size']
  experiment().validate()
  model = families.read_model(config)
  num_parameters = sum(
    np.prod(weight.tensor_shape, dtype=np.int64) for weight in model.weights()
  )
  # As their docstrings name them, in millions.
  published = {
    'Llama2': 6738,
    'Llama3': 1235,
    'Mistral': 7241,
    'Qwen2': 494,
    'Qwen3': 596,
    'Gemma': 2506,
    'Gemma2': 2614,
    'Gpt2': 124,
  }
  assert num_parameters // 10**6 == published[name]


def test_trains_from_imported_weights_and_exports(tmp_path, capfd):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_byte_model(source, 'llama3')
  (source / 'notes.txt').write_text('a file of the model')
  words = ['--set=NUM_TRAIN_STEPS=2', '--set=EVAL_ON_TEST=False']
  assert job_runs.run('Llama3', source, job, *words) == 0, (
    capfd.readouterr().err
  )
  assert (job / 'huggingface/notes.txt').exists()
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  assert (output / 'notes.txt').exists()
  before, after = map(safetensors.read_folder, (source, output))
  assert list(before) == list(after)
  changes = [
    np.abs(after[name].read() - before[name].read()).max() for name in before
  ]
  # Two steps of Adam with a learning rate of at most 1e-5.
  assert 0 < max(changes) < 1e-4


def test_repeated_layers_have_the_loss_of_the_model_and_export_it(
  tmp_path, capfd
):
  # Two layers of different attention windows are one block; fsdp and tensor
  # parallelism.
  words = ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']
  job_runs.check_repeated_layers('Gemma2', tmp_path, words, capfd)


def test_decodes_the_greedy_tokens_of_the_model(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'gemma2')
  job = tmp_path / 'job'
  code = job_runs.run('Gemma2', source, job, '--mode=decode_once')
  assert code == 0, capfd.readouterr().err
  outputs = io_utils.load_outputs(job, 'prompts', 'decoder', 0)
  model = loaded_models.LoadedModel(
    model_folder.ModelFolder.open(source), job_runs.DECODE_SEQ_LEN // 2
  )
  for prompt, (_, found) in zip(job_runs.PROMPTS, outputs, strict=True):
    ids = np.array([[256, *prompt.encode()]], np.int32)
    want = model.greedy(ids)[0]
    got = found['decoded_ids']
    assert len(got) == job_runs.DECODE_SEQ_LEN // 2
    np.testing.assert_array_equal(got, want[: len(got)])


def test_another_family_or_size_is_refused(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'qwen3')
  assert job_runs.run('Mistral', source, tmp_path / 'job') != 0
  assert 'must have a mistral, got a qwen3' in capfd.readouterr().err
  other = tmp_path / 'other'
  config = json.loads((source / 'config.json').read_text())
  config['num_hidden_layers'] = 1
  shapes = {
    weight.tensor: weight.tensor_shape
    for weight in families.read_model(config).weights()
  }
  reference_models.write(other, config, shapes)
  (other / 'tokenizer.json').unlink()
  code = job_runs.run(
    'Qwen3', other, tmp_path / 'job', f'--init_from=hf:{source}'
  )
  error = capfd.readouterr().err
  assert code != 0 and 'x_layers_1' in error and 'MODEL_DIR' in error


def test_tokenizers_of_folders(tmp_path):
  folder = str(tmp_path)
  name = lambda: huggingface.tokenizer_of(folder).cls.__name__
  assert name() == 'ByteTokenizer'
  (tmp_path / 'tokenizer.json').write_text('{}')
  assert name() == 'HuggingFaceTokenizer'
  (tmp_path / 'tokenizer.model').write_text('')
  assert name() == 'SentencePieceTokenizer'
