# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Prompts are read once, in order, padded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs.text import prompts
from pax.inputs.tokens import chat_templates, tokenizers


def _input(**fields):
  defaults = {
    'files': __file__,
    'held_out_percent': 0.0,
    'batch_size': 2,
    'seq_len': 4,
    'prompts': ('ab', 'abcdef', 'c'),
  }
  return prompts.PromptLmInput.config(**defaults | fields).Instantiate()


def test_batches():
  made = _input()
  assert made.num_batches == 2
  first, last = made.get_next(), made.get_next()
  bos = tokenizers.ByteTokenizer.bos_id
  np.testing.assert_array_equal(
    first.ids, [[bos, 97, 98, 0], [bos, 97, 98, 99]]
  )
  np.testing.assert_array_equal(first.paddings, [[0, 0, 0, 1], [0, 0, 0, 0]])
  np.testing.assert_array_equal(last.ids, [[bos, 99, 0, 0], [0, 0, 0, 0]])
  np.testing.assert_array_equal(last.eval_sample_weights, [1, 0])
  with pytest.raises(StopIteration):
    made.get_next()
  made.reset()
  np.testing.assert_array_equal(made.get_next().ids, first.ids)


def test_a_prompt_that_is_cut_is_reported(caplog):
  _input(prompts=('abc',)).get_next()
  assert not caplog.text
  _input(prompts=('abc', 'abcdef'), name='mine').get_next()
  assert 'Prompt 2 of mine has 7 tokens, and its last ones' in caplog.text


def test_hosts_share_them():
  hosts = [_input(num_infeed_hosts=2, infeed_host_index=i) for i in range(2)]
  texts = [h.get_next().eval_sample_weights.sum() for h in hosts]
  assert texts == [2, 1]
  assert hosts[0].num_batches == 1


def test_none():
  with pytest.raises(ValueError, match='at least one text'):
    _input(prompts=())


def test_one_text_is_no_sequence_of_prompts():
  with pytest.raises(ValueError, match=r"sequence of texts.*write \('ab',\)"):
    _input(prompts='ab')


@pytest.mark.parametrize(
  'name, text',
  [
    ('prompts.txt', ' ab\n\nc  \n'),
    ('prompts.jsonl', '{"prompt": " ab", "text": "x"}\n{"text": "c  "}\n'),
    ('strings.jsonl', '" ab"\n"c  "\n'),
  ],
)
def test_a_file_has_a_prompt_per_line(name, text, tmp_path):
  file = tmp_path / name
  file.write_text(text)
  config = prompts.PromptFileInput.config(
    files=__file__, held_out_percent=0.0, batch_size=2, seq_len=4
  )
  made = config.clone().set(file=str(file)).Instantiate()
  assert made.prompts == (' ab', 'c  ')
  batch = made.get_next()
  bos = tokenizers.ByteTokenizer.bos_id
  np.testing.assert_array_equal(batch.ids[0], [bos, 32, 97, 98])
  with pytest.raises(ValueError, match='does not exist'):
    config.clone().set(file=str(tmp_path / 'none.txt')).Instantiate()
  file.write_text('\n')
  with pytest.raises(ValueError, match=f'{name}.* prompt per line, got none'):
    config.clone().set(file=str(file)).Instantiate()


def test_a_conversation_is_a_prompt(tmp_path):
  file = tmp_path / 'prompts.jsonl'
  messages = [{'role': 'user', 'content': 'a'}]
  file.write_text('\n'.join(map(json.dumps, [{'messages': messages}, 'b'])))
  (tmp_path / 'chat_template.jinja').write_text(
    '{{ messages[0].content }}{% if add_generation_prompt %}?{% endif %}'
  )
  config = prompts.PromptFileInput.config(
    files=__file__, file=str(file), batch_size=2, seq_len=3
  )
  template = chat_templates.ChatTemplate.config(folder=str(tmp_path))
  made = config.clone().set(chat_template=template).Instantiate()
  batch = made.get_next()
  bos = tokenizers.ByteTokenizer.bos_id
  # The template writes the special tokens of a conversation.
  np.testing.assert_array_equal(batch.ids, [[*b'a?', 0], [bos, *b'b', 0]])
  np.testing.assert_array_equal(batch.paddings, [[0, 0, 1], [0, 0, 1]])
  with pytest.raises(ValueError, match='jsonl:1 has messages, which need a'):
    config.Instantiate()
