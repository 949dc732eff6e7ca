# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows of prompts with the same samples, and their rewards."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs.text import rewarded_prompts
from pax.inputs.tokens import chat_templates, tokenizers

_BOS = tokenizers.ByteTokenizer.bos_id
_HERE = 'tests.pax.inputs.text.rewarded_prompts_test'
_TEMPLATE = (
  '{% for message in messages %}<{{ message.role[0] }}>{{ message.content }}'
  '{% endfor %}{% if add_generation_prompt %}<a>{% endif %}'
)


def is_answer(examples, responses):
  pairs = zip(examples, responses, strict=True)
  return [float(x['answer'] == response) for x, response in pairs]


def length(examples, responses):
  del examples
  return [len(x) for x in responses]


def not_a_number(examples, responses):
  del examples
  return [float('nan')] * len(responses)


def one_number(examples, responses):
  del examples, responses
  return 1.0


def texts(examples, responses):
  del examples
  return responses


def lists(examples, responses):
  del examples
  return [[1.0] * n for n, _ in enumerate(responses)]


def generator(examples, responses):
  del examples
  return (1.0 for _ in responses)


def too_large(examples, responses):
  del examples
  return [1e39] * len(responses)


def exits(examples, responses):
  raise SystemExit(0)


def std(examples, responses):
  return length(examples, responses)


NOT_A_FUNCTION = 3


def _lines(count):
  return [
    {'prompt': chr(97 + i) * (i + 1), 'answer': str(i)} for i in range(count)
  ]


def _input(tmp_path, lines, **fields):
  file = tmp_path / 'prompts.jsonl'
  file.write_text('\n'.join(map(json.dumps, lines)))
  (tmp_path / 'chat_template.jinja').write_text(_TEMPLATE)
  defaults = {
    'name': 'train',
    'files': str(file),
    'batch_size': 4,
    'seq_len': 12,
    'max_prompt_len': 8,
    'num_samples': 2,
    'held_out_percent': 0.0,
    'is_training': True,
    'reward_functions': {f'{_HERE}:is_answer': 1.0},
    'chat_template': chat_templates.ChatTemplate.config(folder=str(tmp_path)),
  }
  made = rewarded_prompts.RewardedPromptInput.config(**defaults | fields)
  return made.Instantiate()


def _prompts(batch):
  """Returns the text of each row after bos."""
  texts = []
  for ids, paddings in zip(batch.ids, batch.paddings, strict=True):
    tokens = ids[paddings == 0]
    assert tokens[0] == _BOS
    texts.append(bytes(tokens[1:].tolist()).decode())
  return texts


def test_each_prompt_has_adjacent_rows_for_its_samples(tmp_path):
  made = _input(tmp_path, _lines(4))
  assert made.num_batches == 2
  first, second = made.get_next(), made.get_next()
  assert first.ids.shape == (4, 12)
  texts = _prompts(first) + _prompts(second)
  assert texts[::2] == texts[1::2]
  assert sorted(texts[::2]) == ['a', 'bb', 'ccc', 'dddd']
  names = [chr(97 + i) * (i + 1) for i in first.prompt_index]
  assert names == _prompts(first)
  assert not first.weights.any()
  assert not first.advantages.any()
  # Another order, of all prompts again.
  texts = _prompts(made.get_next()) + _prompts(made.get_next())
  assert sorted(texts[::2]) == ['a', 'bb', 'ccc', 'dddd']


def test_hosts_read_the_prompts_of_one(tmp_path):
  whole = _input(tmp_path, _lines(6), batch_size=8)
  hosts = [
    _input(tmp_path, _lines(6), num_infeed_hosts=2, infeed_host_index=i)
    for i in range(2)
  ]
  for _ in range(3):
    rows = np.concatenate([x.get_next().prompt_index for x in hosts])
    np.testing.assert_array_equal(rows, whole.get_next().prompt_index)


def test_it_resumes_at_any_batch(tmp_path):
  made, other = (_input(tmp_path, _lines(5)) for _ in range(2))
  for _ in range(3):
    made.get_next()
  other.set_state(made.get_state())
  np.testing.assert_array_equal(made.get_next().ids, other.get_next().ids)


def test_evaluation_has_each_prompt_once_in_short_rows(tmp_path):
  made = _input(
    tmp_path, _lines(3), is_training=False, reset_for_eval=True, batch_size=2
  )
  first, second = made.get_next(), made.get_next()
  assert first.ids.shape == (2, 8)
  assert _prompts(first) == ['a', 'bb']
  assert 'advantages' not in first
  np.testing.assert_array_equal(second.eval_sample_weights, [1, 0])
  with pytest.raises(StopIteration):
    made.get_next()


def test_conversations_become_text_by_the_template(tmp_path):
  message = {'role': 'user', 'content': 'x'}
  for field in ('prompt', 'messages'):
    batch = _input(tmp_path, [{field: [message]}]).get_next()
    tokens = batch.ids[0][batch.paddings[0] == 0]
    assert bytes(tokens.tolist()) == b'<u>x<a>'


def test_longer_prompts_are_left_out(tmp_path, caplog):
  made = _input(tmp_path, _lines(9))
  assert made.num_examples == 7 * 2
  assert '2 of 9 prompts of train have more than 8 tokens' in caplog.text
  with pytest.raises(ValueError, match=r'in each of 2; set MAX_PROMPT_LEN'):
    _input(tmp_path, [{'prompt': 'a' * 9}] * 2).get_next()
  with pytest.raises(ValueError, match='must have training text'):
    _input(tmp_path, []).get_next()


def test_rewards_are_weighted_sums(tmp_path):
  functions = {f'{_HERE}:is_answer': 2.0, f'{_HERE}:length': -0.5}
  made = _input(tmp_path, _lines(3), reward_functions=functions)
  rewards = made.rewards(np.array([2, 0, 1]), ['2', '10', '1'])
  np.testing.assert_array_equal(rewards['reward'], [1.5, -1.0, 1.5])
  np.testing.assert_array_equal(rewards['reward_is_answer'], [1, 0, 1])
  np.testing.assert_array_equal(rewards['reward_length'], [1, 2, 1])
  alone = _input(tmp_path, _lines(3))
  assert list(alone.rewards(np.array([2]), ['2'])) == ['reward']


def test_a_reward_function_that_fails_is_named(tmp_path):
  functions = {f'{_HERE}:is_answer': 1.0}
  made = _input(tmp_path, [{'prompt': 'a'}], reward_functions=functions)
  with pytest.raises(ValueError, match="is_answer failed with KeyError: 'answ"):
    made.rewards(np.array([0]), ['b'])


def test_a_reward_function_does_not_end_the_job(tmp_path):
  functions = {f'{_HERE}:exits': 1.0}
  made = _input(tmp_path, _lines(1), reward_functions=functions)
  with pytest.raises(ValueError, match='exits failed with SystemExit: 0'):
    made.rewards(np.array([0]), ['b'])


@pytest.mark.parametrize(
  'function',
  ['not_a_number', 'one_number', 'texts', 'lists', 'generator', 'too_large'],
)
def test_a_reward_is_a_finite_number_for_each_response(tmp_path, function):
  functions = {f'{_HERE}:{function}': 1.0}
  made = _input(tmp_path, _lines(3), reward_functions=functions)
  with pytest.raises(ValueError, match=f'{function} must return 2 finite'):
    made.rewards(np.array([0, 1]), ['a', 'b'])


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'reward_functions': {}}, 'set REWARDS'),
    ({'reward_functions': {f'{_HERE}:absent': 1.0}}, "no 'absent' in it"),
    ({'reward_functions': {'absent_module:f': 1.0}}, "no module 'absent_mod"),
    ({'reward_functions': {f'{_HERE}:NOT_A_FUNCTION': 1.0}}, 'is a int; name'),
    ({'reward_functions': [f'{_HERE}:length']}, r"got \['tests.* set REWARDS"),
    ({'reward_functions': {f'{_HERE}:length': 'a'}}, "got .*'a'}; set REWARDS"),
    (
      {'reward_functions': {f'{_HERE}:length': 1.0, 'my_module:length': 1.0}},
      'got reward_length, reward_length for .*:length, my_module:length;',
    ),
    (
      {'reward_functions': {f'{_HERE}:length': 1.0, f'{_HERE}:std': 1.0}},
      "none of them 'reward_std', got reward_length, reward_std for",
    ),
    ({'batch_size': 3}, 'multiple of 2 rows'),
    ({'max_prompt_len': 12}, 'leaves room for a response'),
  ],
)
def test_settings_are_checked(tmp_path, fields, message):
  with pytest.raises(ValueError, match=message):
    _input(tmp_path, _lines(3), **fields)


@pytest.mark.parametrize(
  'line', [{'question': 'a'}, {'prompt': []}, {'prompt': 1}, 'a']
)
def test_an_object_needs_a_prompt(tmp_path, line):
  made = _input(tmp_path, [line])
  with pytest.raises(ValueError, match=r"jsonl:1 must be an object with 'pro"):
    made.get_next()


def test_a_prompt_does_not_have_the_answer(tmp_path):
  messages = [
    {'role': 'user', 'content': 'x'},
    {'role': 'assistant', 'content': 'y'},
  ]
  made = _input(tmp_path, [{'messages': messages}])
  with pytest.raises(
    ValueError, match=r'jsonl:1 .* last one of role assistant'
  ):
    made.get_next()
