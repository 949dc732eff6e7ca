# SPDX-License-Identifier: Apache-2.0
"""Jobs with models of transformers: the same tokens, texts and losses."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from pax import main
from tests.compare import huggingface_references as references
from tests.integration import binary
from tests.pax.huggingface import job_runs

_EXPERIMENTS = {
  'llama2': 'Llama2',
  'llama3': 'Llama3',
  'mistral': 'Mistral',
  'ministral3': 'Ministral3',
  'llama4': 'Llama4',
  'qwen2': 'Qwen2',
  'qwen2_window': 'Qwen2',
  'qwen3': 'Qwen3',
  'qwen3_next': 'Qwen3Next',
  'qwen3_5': 'Qwen3_5',
  'qwen3_5_moe': 'Qwen3_5Moe',
  'gemma': 'Gemma',
  'gemma2': 'Gemma2',
  'olmo2': 'Olmo2',
  'olmo3': 'Olmo3',
  'phi3': 'Phi3',
  'smollm3': 'SmolLM3',
  'glm4': 'Glm4',
  'exaone4': 'Exaone4',
  'seed_oss': 'SeedOss',
  'granite': 'Granite',
  'granite_hybrid': 'Granite4',
  'granite_hybrid_moe': 'Granite4Moe',
  'nemotron_h': 'Nemotron3',
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


def _write_tokenizer(folder: pathlib.Path, template: str = '$A') -> int:
  """Writes a tokenizer of byte pairs; returns the size of its vocabulary.

  Args:
    folder: Where the model is saved.
    template: The text with special tokens.
  """
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
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single=template, special_tokens=[('<s>', 1), ('</s>', 2)]
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
  size = _write_tokenizer(folder, '<s> $A' if has_bos else '$A')
  # Two blocks of a repeated stack.
  changes = {'num_hidden_layers': 4} if name == 'llama4' else {}
  model = references.make_model(name, vocab_size=size, **changes)
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


@pytest.mark.parametrize('name', ['qwen3', 'gemma2', 'gpt2'])
def test_decoding_follows_the_checkpoints_of_a_job(name, tmp_path, capfd):
  folder, job = tmp_path / 'model', tmp_path / 'job'
  file = tmp_path / 'prompts.txt'
  file.write_text('\n'.join(_PROMPTS))
  size = _write_tokenizer(folder)
  model = references.make_model(name, vocab_size=size)
  model.save_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  words = [
    f'--set=PROMPTS_FILE={file}',
    '--set=DECODE_BATCH_SIZE=2',
    # The weights of all checkpoints are those of the folder.
    '--set=LEARNING_RATE=0.0',
    '--set=NUM_TRAIN_STEPS=4',
    '--set=CHECKPOINT_EVERY_N_STEPS=2',
    '--set=EVAL_ON_TEST=False',
  ]
  exp = f'tasks.lm.params.huggingface.{_EXPERIMENTS[name]}'
  # It waits for the first checkpoint.
  follower = binary.start(
    exp,
    job,
    f'--set=MODEL_DIR={folder}',
    '--set=FPROP_DTYPE=float32',
    *job_runs.decoder_words(folder),
    *words,
    '--mode=decode',
  )
  code = job_runs.run(_EXPERIMENTS[name], folder, job, *words)
  assert code == 0, capfd.readouterr().err
  ended = follower.wait(binary.TIMEOUT_SECS)
  assert ended.returncode == 0, ended.stderr
  steps = [
    int(path.name.split('_')[2])
    for path in (job / 'decoder_out/prompts').glob('*.jsonl')
  ]
  assert max(steps) == 4
  for step in steps:
    for prompt, (tokens, text) in job_runs.decoded(job, 'decode', step).items():
      inputs = tokenizer(prompt, return_tensors='pt')
      expected = _generate(model, inputs)
      np.testing.assert_array_equal(tokens, expected)
      assert text == tokenizer.decode(expected, skip_special_tokens=True)


def _generate(model, inputs) -> list[int]:
  with torch.no_grad():
    tokens = model.generate(
      **inputs, do_sample=False, max_new_tokens=_NUM_NEW_TOKENS, pad_token_id=0
    )
  return tokens[0, inputs['input_ids'].shape[1] :].tolist()


@pytest.mark.parametrize('name, exp', [('t5', 'T5'), ('t5_1_1', 'T5V1_1')])
def test_a_t5_has_the_loss_and_the_texts_of_transformers(
  name, exp, tmp_path, capfd
):
  folder, job = tmp_path / 'model', tmp_path / 'job'
  size = _write_tokenizer(folder, '$A </s>')
  model = references.make_model(name, vocab_size=size, eos_token_id=2)
  model.save_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  pairs = dict(zip(_TEXTS, ('a b', 'c', 'text', 'a text of text'), strict=True))
  file = tmp_path / 'pairs.jsonl'
  lines = [{'input': text, 'target': pairs[text]} for text in _TEXTS]
  file.write_text('\n'.join(map(json.dumps, lines)))
  words = [
    '--set=OBJECTIVE=pairs',
    f'--set=TRAIN_FILES={file}',
    '--set=HELD_OUT_PERCENT=0',
    '--set=BATCH_SIZE=4',
    '--set=SOURCE_LEN=32',
    '--set=TARGET_LEN=16',
    '--set=NUM_TRAIN_STEPS=1',
  ]
  code = job_runs.run_encoder_decoder(
    exp, folder, job, *words, '--set=EVAL_ON_TEST=False'
  )
  assert code == 0, capfd.readouterr().err
  sources, targets = (
    tokenizer(texts, return_tensors='pt', padding=True)
    for texts in (list(pairs), list(pairs.values()))
  )
  is_token = targets.attention_mask == 1
  labels = torch.where(is_token, targets.input_ids, -100)
  with torch.no_grad():
    loss = model(
      input_ids=sources.input_ids,
      attention_mask=sources.attention_mask,
      labels=labels,
    ).loss.item()
  assert job_runs.first_loss(job) == pytest.approx(loss, abs=1e-4)
  other = tmp_path / 'decoded'
  code = job_runs.run_encoder_decoder(
    exp,
    folder,
    other,
    *words,
    '--mode=infer',
    f'--set=PROMPTS_FILE={file}',
    '--set=DECODE_BATCH_SIZE=3',
  )
  assert code == 0, capfd.readouterr().err
  found = job_runs.decoded(other, 'infer')
  assert found.keys() == pairs.keys()
  for source, (ids, text) in found.items():
    inputs = tokenizer(source, return_tensors='pt')
    with torch.no_grad():
      # The cache of transformers has as many layers as the encoder.
      tokens = model.generate(
        inputs.input_ids, do_sample=False, max_length=16, use_cache=False
      )[0].tolist()
    np.testing.assert_array_equal(ids, tokens)
    assert text == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
  'name, words',
  [
    ('llama3', ['--dtype=bfloat16', '--max_shard_size=20KB']),
    ('qwen2', ['--dtype=float16']),
    ('gemma2', ['--max_shard_size=40KB']),
    ('phi3', ['--dtype=bfloat16', '--max_shard_size=20KB']),
    ('smollm3', ['--dtype=float16']),
    ('gpt2', ['--dtype=float32']),
    ('t5', ['--max_shard_size=30KB']),
    ('t5_1_1', ['--dtype=bfloat16']),
  ],
)
@pytest.mark.parametrize('has_headers', [True, False])
def test_exported_folders_open_without_warnings(
  name, words, has_headers, tmp_path
):
  saved, job, output = (tmp_path / x for x in ('saved', 'job', 'output'))
  model = references.make_model(name)
  model.save_pretrained(saved)
  _write_tokenizer(saved)
  convert = ['pax', 'convert']
  to_pax = [*convert, 'hf-to-pax', str(saved), str(job)]
  # Layers of encoder-decoders are not repeated, nor two different layers.
  if not name.startswith('t5') and name != 'gemma2':
    to_pax.append('--repeated_layers')
  assert main.main(to_pax) == 0
  if not has_headers:
    shutil.rmtree(job / 'huggingface')
    words = [*words, f'--config={saved}']
  to_huggingface = [*convert, 'pax-to-hf', str(job), str(output), *words]
  assert main.main(to_huggingface) == 0
  cls = transformers.AutoModelForCausalLM
  if name.startswith('t5'):
    cls = transformers.T5ForConditionalGeneration
  loaded, report = cls.from_pretrained(
    output, output_loading_info=True, dtype='auto'
  )
  assert not any(report.values()), report
  dtypes = [word.removeprefix('--dtype=') for word in words if 'dtype' in word]
  dtype = getattr(torch, dtypes[0] if dtypes else 'float32')
  assert loaded.dtype == dtype
  for key, value in model.state_dict().items():
    assert torch.equal(value.to(dtype), loaded.state_dict()[key]), key
  for file in ('tokenizer.json', 'generation_config.json'):
    assert (output / file).read_bytes() == (saved / file).read_bytes()
