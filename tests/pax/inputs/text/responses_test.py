# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows whose loss is that of responses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sentencepiece

from pax.inputs.text import responses
from pax.inputs.tokens import chat_templates, tokenizers

_BOS, _EOS = tokenizers.ByteTokenizer.bos_id, tokenizers.ByteTokenizer.eos_id
_CHATML = (
  '{% for message in messages %}'
  '<{{ message.role }}>{{ message.content }};'
  '{% endfor %}'
  '{% if add_generation_prompt %}<assistant>{% endif %}'
)


def _input(tmp_path, lines, template=None, **fields):
  file = tmp_path / 'examples.jsonl'
  file.write_text('\n'.join(map(json.dumps, lines)))
  chat_template = None
  if template is not None:
    (tmp_path / 'chat_template.jinja').write_text(template)
    chat_template = chat_templates.ChatTemplate.config(folder=str(tmp_path))
  defaults = {
    'files': str(file),
    'batch_size': 1,
    'seq_len': 16,
    'held_out_percent': 0.0,
    'chat_template': chat_template,
  }
  return responses.ResponseInput.config(**defaults | fields).Instantiate()


def _learned(batch, row=0) -> str:
  """Returns the text of the labels with weight 1; eos is a full stop."""
  labels = batch.labels[row][batch.weights[row] == 1]
  return ''.join('.' if i == _EOS else chr(i) for i in labels)


def test_a_pair_learns_its_completion_and_eos(tmp_path):
  batch = _input(tmp_path, [{'prompt': 'abc', 'completion': 'xy'}]).get_next()
  tokens = [_BOS, *b'abcxy', _EOS]
  np.testing.assert_array_equal(batch.ids[0], tokens[:-1] + [0] * 10)
  np.testing.assert_array_equal(batch.labels[0], tokens[1:] + [0] * 10)
  np.testing.assert_array_equal(batch.weights[0], [0] * 3 + [1] * 3 + [0] * 10)
  np.testing.assert_array_equal(batch.paddings[0], [0] * 6 + [1] * 10)


def test_tokens_are_those_of_the_whole_text(tmp_path):
  # This model writes a space before each text that it encodes.
  model = tmp_path / 'spaces.model'
  with model.open('wb') as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(['the cat sat on the mat'] * 30),
      model_writer=file,
      vocab_size=290,
      model_type='bpe',
      byte_fallback=True,
      hard_vocab_limit=False,
      minloglevel=2,
    )
  config = tokenizers.SentencePieceTokenizer.config(model_file=str(model))
  pair = {'prompt': 'the cat', 'completion': ' sat on the mat'}
  batch = _input(tmp_path, [pair], tokenizer=config, seq_len=64).get_next()
  made = config.Instantiate()
  whole = [made.bos_id, *made.encode(b'the cat sat on the mat'), made.eos_id]
  count = len(whole) - 1
  np.testing.assert_array_equal(batch.ids[0, :count], whole[:-1])
  np.testing.assert_array_equal(batch.labels[0, :count], whole[1:])
  learned = batch.labels[0][batch.weights[0] == 1]
  assert made.decode(learned[:-1]) == 'sat on the mat'
  assert learned[-1] == made.eos_id


def test_another_template_is_other_data(tmp_path):
  lines = [{'prompt': 'a', 'completion': 'b'}]
  first = _input(tmp_path, lines, _CHATML).data_fingerprint()
  assert _input(tmp_path, lines, _CHATML).data_fingerprint() == first
  assert _input(tmp_path, lines, _CHATML + '!').data_fingerprint() != first
  assert _input(tmp_path, lines).data_fingerprint() != first


def test_pairs_need_no_template(tmp_path):
  template = chat_templates.ChatTemplate.config(folder=str(tmp_path))
  lines = [{'prompt': 'a', 'completion': 'b'}]
  made = _input(tmp_path, lines, chat_template=template)
  assert made.data_fingerprint()['chat_template']
  assert _learned(made.get_next()) == 'b.'


def test_examples_share_rows(tmp_path):
  lines = [{'prompt': p, 'completion': c} for p, c in ('aX', 'bY', 'cZ')]
  batch = _input(tmp_path, lines).get_next()
  np.testing.assert_array_equal(
    batch.segment_ids[0], [1] * 3 + [2] * 3 + [3] * 3 + [0] * 7
  )
  assert sorted(_learned(batch).split('.')) == ['', 'X', 'Y', 'Z']


def test_a_conversation_learns_each_response(tmp_path):
  messages = [
    {'role': 'system', 'content': 'S'},
    {'role': 'user', 'content': 'Q'},
    {'role': 'assistant', 'content': 'first'},
    {'role': 'user', 'content': 'R'},
    {'role': 'assistant', 'content': 'second'},
    {'role': 'user', 'content': 'bye'},
  ]
  made = _input(tmp_path, [{'messages': messages}], _CHATML, seq_len=96)
  batch = made.get_next()
  assert _learned(batch) == 'first;second;'
  text = bytes(batch.ids[0][batch.paddings[0] == 0].tolist()).decode()
  assert text == (
    '<system>S;<user>Q;<assistant>first;<user>R;<assistant>second;<user>bye'
  )


def test_what_the_template_marks_is_learned(tmp_path):
  template = (
    '{% for message in messages %}<{{ message.role }}>'
    "{% if message.role == 'assistant' %}"
    '{% generation %}{{ message.content }}!{% endgeneration %}'
    '{% else %}{{ message.content }}{% endif %};{% endfor %}'
  )
  messages = [
    {'role': 'user', 'content': 'Q'},
    {'role': 'assistant', 'content': 'A'},
  ]
  made = _input(tmp_path, [{'messages': messages}], template, seq_len=32)
  assert _learned(made.get_next()) == 'A!'


def test_long_examples_are_truncated_or_left_out(tmp_path, caplog):
  lines = [
    {'prompt': 'ab', 'completion': 'long enough'},
    {'prompt': 'a prompt without room', 'completion': 'x'},
  ]
  made = _input(tmp_path, lines, seq_len=8)
  assert made.num_examples == 1
  assert _learned(made.get_next()) == 'long e'
  assert '1 of 2 examples' in caplog.text
  with pytest.raises(ValueError, match=r'first \d+ tokens, got none in 1'):
    _ = _input(tmp_path, lines[1:], seq_len=8).num_examples
  with pytest.raises(ValueError, match='must have training text'):
    _ = _input(tmp_path, []).num_examples


def test_prompts_are_held_out_with_all_their_responses(tmp_path):
  lines = [{'prompt': str(i), 'completion': c} for i in range(40) for c in 'ab']
  texts = {}
  for held_out in (True, False):
    made = _input(
      tmp_path,
      lines,
      held_out=held_out,
      held_out_percent=30.0,
      seq_len=512,
      reset_for_eval=True,
    )
    rows = [made.get_next() for _ in range(made.num_examples)]
    texts[held_out] = ''.join(_learned(row) for row in rows)
  assert len(texts[True]) + len(texts[False]) == 2 * len(lines)
  for learned in texts.values():
    assert learned.count('a') == learned.count('b') > 0


@pytest.mark.parametrize(
  ('line', 'template', 'message'),
  [
    ({'prompt': 'a'}, None, "jsonl:1 must be an object with 'messages'"),
    ({'messages': 'a'}, None, "a list of objects 'messages', got a"),
    ({'messages': []}, None, 'need a chat template; set MODEL_DIR'),
    (
      {'messages': [{'role': 'user', 'content': 'a'}]},
      "{{ raise_exception('no system message') }}",
      'refuses the messages: no system message',
    ),
  ],
)
def test_other_lines_are_refused(tmp_path, line, template, message):
  with pytest.raises(ValueError, match=message):
    _ = _input(tmp_path, [line], template).num_examples
