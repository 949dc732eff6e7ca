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
from tests.compare import huggingface_references as references
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


@pytest.mark.parametrize('name, family', [('qwen2', 'Qwen2'), ('gpt2', 'Gpt2')])
@pytest.mark.parametrize('is_repeated', [False, True])
def test_steps_are_those_of_adamw_with_two_groups(
  name, family, is_repeated, tmp_path, capfd
):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  model = references.make_model(name, vocab_size=300)
  model.save_pretrained(source)
  # The embedding of the id 0, padding, has no gradient in torch.
  tokens = np.random.default_rng(0).integers(1, 300, 999)
  tokens.astype('u2').tofile(tmp_path / 'tokens.bin')

  class Small(getattr(huggingface, family)):
    MODEL_DIR = str(source)
    TRAIN_DATA = str(tmp_path / 'tokens.bin')
    USE_REPEATED_LAYER = is_repeated
    BATCH_SIZE = 4
    MAX_SEQ_LEN = DECODE_SEQ_LEN = 16
    FPROP_DTYPE = np.dtype('float32')
    NUM_TRAIN_STEPS = 4
    LEARNING_RATE = 0.01
    WARMUP_STEPS = 2
    LR_MIN_RATIO = 0.1
    WEIGHT_DECAY = 0.5
    CLIP_GRADIENT_NORM_TO_VALUE = 0.5
    ADAM_BETA1 = 0.8
    # Tiny gradients would be divided by as tiny ones.
    ADAM_EPSILON = 1e-3
    ADAM_CLIP_THRESHOLD = -1.0
    EVAL_ON_TEST = False
    SAMPLE_PROMPT = ''

  init_from = f'hf:{source}'
  assert jobs.train_and_evaluate(Small(), job, init_from=init_from) == 0
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0, capfd.readouterr().err
  trained = transformers.AutoModelForCausalLM.from_pretrained(output)
  _train_by_adamw(model, Small().datasets()[0].Instantiate())
  for key, want in model.state_dict().items():
    found = trained.state_dict()[key]
    torch.testing.assert_close(found, want, atol=2e-5, rtol=0.0)


def _train_by_adamw(model, batches) -> None:
  """Trains a model on four batches with the settings of the test above."""
  parameters = list(model.parameters())
  matrices = [p for p in parameters if p.ndim > 1]
  vectors = [p for p in parameters if p.ndim <= 1]
  optimizer = torch.optim.AdamW(
    [
      {'params': matrices, 'weight_decay': 0.5},
      {'params': vectors, 'weight_decay': 0.0},
    ],
    betas=(0.8, 0.95),
    eps=1e-3,
  )
  # Up in two steps, then half a cosine from 1 to 0.1 in two.
  for factor in (0.0, 0.5, 1.0, 0.55):
    batch = batches.get_next()
    ids, labels = (torch.tensor(x).long() for x in (batch.ids, batch.labels))
    log_probs = model(ids).logits.log_softmax(-1)
    loss = -log_probs.gather(-1, labels[..., None]).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    for group in optimizer.param_groups:
      group['lr'] = 0.01 * factor
    optimizer.step()
