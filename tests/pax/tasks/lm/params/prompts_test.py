# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face continue the prompts of a file."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=medium
from __future__ import annotations

import json

import numpy as np
import pytest

from pax.huggingface import model_folder
from pax.inputs.tokens import tokenizers
from pax.tasks.lm.params import huggingface
from tests.pax.huggingface import job_runs, loaded_models, reference_models


@pytest.fixture(scope='module')
def prompted(tmp_path_factory):
  """(a model, its greedy tokens by prompts of several lengths)."""
  source = reference_models.write_byte_model(
    tmp_path_factory.mktemp('prompted') / 'source', 'gemma2'
  )
  model = loaded_models.LoadedModel(
    model_folder.ModelFolder.open(source), job_runs.DECODE_SEQ_LEN // 2
  )
  tokens = {}
  for prompt in ('ab', 'xyz', 'Q: 1?'):
    ids = np.array([[256, *prompt.encode()]], np.int32)
    tokens[prompt] = model.greedy(ids)[0]
  return source, tokens


@pytest.mark.parametrize('mode', ['decode_once', 'infer'])
def test_prompts_of_a_file_get_the_greedy_tokens_of_the_model(
  mode, prompted, tmp_path, capfd
):
  source, want = prompted
  job, file = tmp_path / 'job', tmp_path / 'prompts.jsonl'
  # Three prompts: the second batch is padded.
  lines = [json.dumps({'prompt': prompt}) for prompt in want]
  file.write_text('\n'.join(lines))
  words = [f'--mode={mode}', f'--set=PROMPTS_FILE={file}']
  words += ['--set=DECODE_BATCH_SIZE=2']
  code = job_runs.run('Gemma2', source, job, *words)
  assert code == 0, capfd.readouterr().err
  outputs = job_runs.decoded(job, mode)
  assert outputs.keys() == want.keys()
  for prompt, (ids, text) in outputs.items():
    np.testing.assert_array_equal(ids, want[prompt][: len(ids)])
    assert len(ids) == job_runs.DECODE_SEQ_LEN // 2
    assert text == tokenizers.ByteTokenizer().decode(ids)


def test_a_decoded_text_ends_at_the_ids_of_generation_config(tmp_path):
  source = reference_models.write_byte_model(tmp_path / 'source', 'gemma2')

  class OfFolder(huggingface.Gemma2):
    MODEL_DIR = str(source)

  eos_ids = lambda: OfFolder().task().model.decoder_tpl.eos_id
  assert eos_ids() == [tokenizers.ByteTokenizer.eos_id]
  file = source / 'generation_config.json'
  file.write_text(json.dumps({'eos_token_id': [7, 263]}))
  assert eos_ids() == [7, 263]
  file.write_text(json.dumps({'do_sample': False}))
  assert eos_ids() == [tokenizers.ByteTokenizer.eos_id]
