# SPDX-License-Identifier: Apache-2.0
"""Conversations become the tokens and masks that transformers gives them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from pax.inputs.text import responses
from pax.inputs.tokens import chat_templates, huggingface_tokenizers
from tests.compare import chat_models

# With tools, dates, loop controls, white space to trim, and marked answers.
TEMPLATE = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
  {%- set system, messages = messages[0].content, messages[1:] %}
{%- else %}
  {%- set system = 'Today is ' + strftime_now('%d %b %Y') %}
{%- endif %}
{{- '<|start|>system\\n' + system | trim + '<|end|>\\n' }}
{%- for message in messages %}
    {%- if message.skipped is defined %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' %}
{{- '<|start|>assistant\\n' }}
        {%- generation %}{{ message.content + '<|end|>' }}{% endgeneration %}
{{- '\\n' }}
    {%- else %}
{{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}
        {%- if message.tools is defined %}
            {%- for tool in message.tools %}
{{ tool | tojson(indent=2) }}
            {% endfor %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}
"""
CONVERSATIONS = [
  [
    {'role': 'system', 'content': '  Be brief. '},
    {'role': 'user', 'content': 'What is 2 + 2?'},
    {'role': 'assistant', 'content': '4'},
    {'role': 'user', 'content': 'And ü?', 'tools': [{'name': '<ü>', 'n': 1}]},
    {'role': 'assistant', 'content': 'A letter.'},
  ],
  [
    {'role': 'system', 'content': ''},
    {'role': 'user', 'content': 'a\n\nb'},
    {'role': 'assistant', 'content': 'x', 'skipped': True},
    {'role': 'assistant', 'content': ' c'},
  ],
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder of a model, without weights."""
  folder = tmp_path_factory.mktemp('model')
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=400,
    special_tokens=['<s>', '</s>', '<|start|>', '<|end|>'],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([TEMPLATE], trainer)
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token='<s>',
    eos_token='</s>',
    chat_template=TEMPLATE,
  ).save_pretrained(folder)
  config = {'vocab_size': 400, 'bos_token_id': 0, 'eos_token_id': 1}
  (folder / 'config.json').write_text(json.dumps(config))
  return folder


def test_texts_of_prompts(folder):
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  ours = chat_templates.ChatTemplate.config(folder=str(folder)).Instantiate()
  for messages in CONVERSATIONS:
    assert ours.prompt(messages) == theirs.apply_chat_template(
      messages, tokenize=False, add_generation_prompt=True
    )


def test_tokens_and_what_is_learned(folder, tmp_path):
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  file = tmp_path / 'chats.jsonl'
  for messages in CONVERSATIONS:
    file.write_text(json.dumps({'messages': messages}))
    batch = (
      responses.ResponseInput.config(
        files=str(file),
        tokenizer=huggingface_tokenizers.HuggingFaceTokenizer.config(
          folder=str(folder)
        ),
        chat_template=chat_templates.ChatTemplate.config(folder=str(folder)),
        held_out_percent=0.0,
        batch_size=1,
        seq_len=256,
      )
      .Instantiate()
      .get_next()
    )
    wanted = theirs.apply_chat_template(
      messages, return_dict=True, return_assistant_tokens_mask=True
    )
    count = len(wanted['input_ids']) - 1
    np.testing.assert_array_equal(
      batch.ids[0, :count], wanted['input_ids'][:-1]
    )
    np.testing.assert_array_equal(
      batch.labels[0, :count], wanted['input_ids'][1:]
    )
    np.testing.assert_array_equal(
      batch.weights[0, :count], wanted['assistant_masks'][1:]
    )
    assert np.sum(batch.weights) == sum(wanted['assistant_masks']) > 2
    assert np.sum(1 - batch.paddings) == count


def test_a_batch_has_the_tokens_of_its_texts(tmp_path):
  chat_models.write_model(tmp_path)
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
  backend = tokenizers.Tokenizer.from_file(f'{tmp_path}/tokenizer.json')
  # A call of transformers with padding may leave them in the file.
  backend.enable_truncation(3)
  backend.enable_padding(length=16)
  backend.save(f'{tmp_path}/tokenizer.json')
  texts = [' '.join(chat_models.WORDS[: n + 1]) for n in range(6)]
  tokenizer = huggingface_tokenizers.HuggingFaceTokenizer.config(
    folder=str(tmp_path)
  ).Instantiate()
  documents = [text.encode() for text in texts]
  expected = reference(texts, add_special_tokens=False)['input_ids']
  assert [x.tolist() for x in tokenizer.encode_all(documents)] == expected
  assert [tokenizer.encode(x).tolist() for x in documents] == expected
