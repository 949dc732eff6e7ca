# SPDX-License-Identifier: Apache-2.0
"""Models that Pax trains from random weights, in transformers and torch."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from pax import jobs, main
from pax.tasks.lm.params import huggingface, published_configs
from tests.integration import binary
from tests.testing import data_sets

_SIZES = {
  'hidden_size': 16,
  'intermediate_size': 16,
  'num_hidden_layers': 2,
  'num_attention_heads': 2,
  'num_key_value_heads': 1,
  'head_dim': 8,
  'eos_token_id': 1,
}
_TEXTS = [f'document {i} of {i * i} words' for i in range(40)]
_WORDS = sorted({word for text in _TEXTS for word in text.split()})


def _write_tokenizer(folder: pathlib.Path) -> int:
  """Writes a tokenizer of words; returns the size of its vocabulary."""
  ids = {word: i for i, word in enumerate(['<unk>', '</s>', *_WORDS])}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(ids, unk_token='<unk>')
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token='<unk>', eos_token='</s>'
  ).save_pretrained(folder)
  transformers.LlamaConfig(eos_token_id=1).save_pretrained(folder)
  return len(ids)


@pytest.mark.parametrize('name', ['LLAMA3', 'QWEN3', 'GEMMA2'])
def test_an_export_without_a_folder_has_model_and_tokenizer(
  name, tmp_path, capfd
):
  size = _write_tokenizer(tmp_path / 'tokenizer')
  data_sets.write_jsonl(tmp_path / 'train.jsonl', _TEXTS)
  data_sets.write_jsonl(tmp_path / 'held_out.jsonl', _TEXTS[3:8])
  family = {'LLAMA3': 'Llama3', 'QWEN3': 'Qwen3', 'GEMMA2': 'Gemma2'}[name]

  class Small(getattr(huggingface, family)):
    CONFIG = getattr(published_configs, name) | _SIZES | {'vocab_size': size}
    TRAIN_DATA = str(tmp_path / 'train.jsonl')
    EVAL_DATA = str(tmp_path / 'held_out.jsonl')
    TOKENIZER = str(tmp_path / 'tokenizer/tokenizer.json')
    BATCH_SIZE = EVAL_BATCH_SIZE = 4
    MAX_SEQ_LEN = 16
    FPROP_DTYPE = np.dtype('float32')
    NUM_TRAIN_STEPS = 2
    EVAL_INTERVAL_STEPS = 2
    LEARNING_RATE = 0.05
    WARMUP_STEPS = 1
    SAMPLE_PROMPT = ''

  job, output = tmp_path / 'job', tmp_path / 'output'
  assert jobs.train_and_evaluate(Small(), job) == 0
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0, capfd.readouterr().err
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    output, output_loading_info=True
  )
  assert not any(report.values()), report
  tokenizer = transformers.AutoTokenizer.from_pretrained(output)
  assert tokenizer('document').input_ids == [2 + _WORDS.index('document')]
  losses = []
  for text in _TEXTS[3:8]:
    ids = tokenizer(text).input_ids
    # A document begins after the end of another one.
    tokens = torch.tensor([[tokenizer.eos_token_id, *ids]])
    labels = torch.tensor([*ids, tokenizer.eos_token_id])
    with torch.no_grad():
      log_probs = model(tokens).logits[0].log_softmax(-1)
    losses += (-log_probs[torch.arange(len(labels)), labels]).tolist()
  records = [
    x for x in binary.records(job) if x['split'] == 'eval_test_held_out'
  ]
  assert records[-1]['loss'] == pytest.approx(np.mean(losses), abs=1e-4)
