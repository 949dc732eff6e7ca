# SPDX-License-Identifier: Apache-2.0
"""Jobs with models of transformers: the same tokens, texts and losses."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from tests.compare import huggingface_references as references
from tests.pax.huggingface import job_runs

_EXPERIMENTS = {
  'llama2': 'Llama2',
  'llama3': 'Llama3',
  'mistral': 'Mistral',
  'qwen2': 'Qwen2',
  'qwen2_window': 'Qwen2',
  'qwen3': 'Qwen3',
  'gemma': 'Gemma',
  'gemma2': 'Gemma2',
  'gpt2': 'Gpt2',
}
_TEXTS = (
  'a model of language',
  'the end of a text',
  'tokens, bytes and text',
  'a text begins',
)
_PROMPTS = ('a mo', 'the end of', 'text')
_NUM_NEW_TOKENS = job_runs.DECODE_SEQ_LEN // 2


def _write_tokenizer(folder: pathlib.Path, *, has_bos: bool) -> int:
  """Writes a tokenizer of byte pairs; returns the size of its vocabulary."""
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    special_tokens=['<pad>', '<s>', '</s>'],
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(_TEXTS, trainer)
  if has_bos:
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
      single='<s> $A', special_tokens=[('<s>', 1)]
    )
  fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token='<s>',
    eos_token='</s>',
    pad_token='<pad>',
  )
  fast.save_pretrained(folder)
  return tokenizer.get_vocab_size()


@pytest.mark.parametrize('name', _EXPERIMENTS)
def test_prompts_of_a_file_are_continued_alike(name, tmp_path, capfd):
  folder, file = tmp_path / 'model', tmp_path / 'prompts.txt'
  # GPT-2 and Qwen have no token before a text.
  has_bos = name not in ('gpt2', 'qwen2', 'qwen3', 'qwen2_window')
  size = _write_tokenizer(folder, has_bos=has_bos)
  model = references.make_model(name, vocab_size=size)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  want = {}
  ids = [tokenizer(prompt, return_tensors='pt') for prompt in _PROMPTS]
  # A token in the middle of a continuation is the end of texts.
  first = _generate(model, ids[0])
  model.generation_config.eos_token_id = [int(first[len(first) // 2]), 2]
  model.save_pretrained(folder)
  for prompt, inputs in zip(_PROMPTS, ids, strict=True):
    tokens = _generate(model, inputs)
    want[prompt] = tokens, tokenizer.decode(tokens, skip_special_tokens=True)
  file.write_text('\n'.join(_PROMPTS))
  for mode in ('decode_once', 'infer'):
    job = tmp_path / mode
    code = job_runs.run(
      _EXPERIMENTS[name],
      folder,
      job,
      f'--mode={mode}',
      f'--set=PROMPTS_FILE={file}',
      '--set=DECODE_BATCH_SIZE=2',
    )
    assert code == 0, capfd.readouterr().err
    found = job_runs.decoded(job, mode)
    found = {
      tokenizer.decode(tokenizer(k).input_ids, skip_special_tokens=True): v
      for k, v in found.items()
    }
    assert found.keys() == want.keys()
    for prompt, (tokens, text) in want.items():
      np.testing.assert_array_equal(found[prompt][0], tokens)
      assert found[prompt][1] == text


def _generate(model, inputs) -> list[int]:
  with torch.no_grad():
    tokens = model.generate(
      **inputs, do_sample=False, max_new_tokens=_NUM_NEW_TOKENS, pad_token_id=0
    )
  return tokens[0, inputs['input_ids'].shape[1] :].tolist()
