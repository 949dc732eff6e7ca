# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows with a preferred and a dispreferred response."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.inputs.text import preferences
from pax.inputs.tokens import chat_templates, tokenizers
from praxis.layers.models import dpo_examples

_BOS, _EOS = tokenizers.ByteTokenizer.bos_id, tokenizers.ByteTokenizer.eos_id
_TEMPLATE = (
  '{% for message in messages %}'
  '<{{ message.role[0] }}>{{ message.content }}'
  '{% endfor %}'
  '{% if add_generation_prompt %}<a>{% endif %}'
)


def _input(tmp_path, lines, **fields):
  file = tmp_path / 'pairs.jsonl'
  file.write_text('\n'.join(map(json.dumps, lines)))
  (tmp_path / 'chat_template.jinja').write_text(_TEMPLATE)
  defaults = {
    'files': str(file),
    'batch_size': 2,
    'seq_len': 8,
    'held_out_percent': 0.0,
    'chat_template': chat_templates.ChatTemplate.config(folder=str(tmp_path)),
  }
  return preferences.PreferenceInput.config(**defaults | fields).Instantiate()


def _message(role, content):
  return {'role': role, 'content': content}


def _learned(half, row=0) -> bytes:
  """Returns the text of the labels that count; eos is a full stop."""
  labels = half.labels.class_ids[row][half.labels.class_weights[row] == 1]
  return bytes(ord('.') if i == _EOS else i for i in labels.tolist())


def _halves(batch):
  arrays = jax.tree.map(jnp.asarray, batch)
  pair = dpo_examples.DPOExample.from_feature_converter(arrays)
  return pair.y_w, pair.y_l


def test_a_row_has_a_response_after_the_prompt(tmp_path):
  lines = [{'prompt': 'ab', 'chosen': 'xyz', 'rejected': 'u'}]
  made = _input(tmp_path, lines)
  batch = made.get_next()
  chosen, rejected = _halves(batch)
  tokens = [_BOS, *b'abxyz', _EOS]
  np.testing.assert_array_equal(chosen.inputs[0], tokens[:-1] + [0] * 2)
  np.testing.assert_array_equal(
    chosen.labels.class_ids[0], tokens[1:] + [0] * 2
  )
  np.testing.assert_array_equal(
    chosen.labels.class_weights[0], [0] * 2 + [1] * 4 + [0] * 2
  )
  for half, length in ((chosen, 6), (rejected, 4)):
    is_token = np.arange(8) < length
    np.testing.assert_array_equal(half.paddings[0], ~is_token)
    np.testing.assert_array_equal(half.segment_ids[0], is_token)
    np.testing.assert_array_equal(half.segment_pos[0], np.arange(8) * is_token)
    # Bos and the two letters of the prompt.
    np.testing.assert_array_equal(half.inputs_indicator[0], np.arange(8) < 3)
  assert _learned(rejected) == b'u.'
  np.testing.assert_array_equal(batch.eval_sample_weights, [1, 0])
  np.testing.assert_array_equal(chosen.paddings[1], np.zeros(8))
  with pytest.raises(StopIteration):
    made.get_next()


def test_a_host_without_rows_has_padding(tmp_path):
  lines = [{'prompt': 'ab', 'chosen': 'xyz', 'rejected': 'u'}]
  hosts = {'num_infeed_hosts': 2, 'infeed_host_index': 1}
  batch = _input(tmp_path, lines, **hosts).get_next()
  np.testing.assert_array_equal(batch.eval_sample_weights, [0, 0])
  assert batch['y_l/inputs'].shape == (2, 8)


@pytest.mark.parametrize('has_prompt', [True, False])
def test_messages_share_those_of_the_prompt(has_prompt, tmp_path):
  prompt = [
    _message('user', 'p'),
    _message('assistant', 'q'),
    _message('user', 'r'),
  ]
  chosen = [_message('assistant', 'X')]
  rejected = [_message('assistant', 'Y'), _message('user', 'z')]
  if has_prompt:
    line = {'prompt': prompt, 'chosen': chosen, 'rejected': rejected}
  else:
    # As in data sets whose prompt is the text of the first message.
    line = {
      'prompt': 'p',
      'chosen': prompt + chosen,
      'rejected': prompt + rejected,
    }
  batch = _input(tmp_path, [line], seq_len=24).get_next()
  halves = _halves(batch)
  # The answer within the prompt is given.
  assert [_learned(half) for half in halves] == [b'X', b'Y']
  texts = [
    bytes(half.inputs[0][half.paddings[0] == 0].tolist()) for half in halves
  ]
  assert texts == [b'<u>p<a>q<u>r<a>', b'<u>p<a>q<u>r<a>Y<u>']


def test_pairs_without_room_for_a_response_are_left_out(tmp_path, caplog):
  lines = [
    {'prompt': 'a', 'chosen': 'b', 'rejected': 'c'},
    {'prompt': 'a long prompt', 'chosen': 'b', 'rejected': 'c'},
  ]
  made = _input(tmp_path, lines)
  assert made.num_examples == 1
  assert '1 of 2 examples' in caplog.text
  with pytest.raises(ValueError, match=r'first \d+ tokens, got none in 1'):
    _ = _input(tmp_path, lines[1:]).num_examples
  with pytest.raises(ValueError, match='must have training text'):
    _ = _input(tmp_path, []).num_examples


@pytest.mark.parametrize(
  'line',
  [
    {'prompt': 'a', 'chosen': 'b'},
    {'prompt': 'a', 'chosen': [_message('assistant', 'b')], 'rejected': 'c'},
    'text',
  ],
)
def test_other_lines_are_refused(line, tmp_path):
  with pytest.raises(ValueError, match=r'jsonl:1 must be .*set PROMPT_FIELD'):
    _ = _input(tmp_path, [line]).num_examples


def test_messages_need_a_template(tmp_path):
  answers = [[_message('assistant', x)] for x in 'ab']
  line = {'chosen': answers[0], 'rejected': answers[1]}
  with pytest.raises(ValueError, match='jsonl:1 has messages, which need a'):
    _ = _input(tmp_path, [line], chat_template=None).num_examples
