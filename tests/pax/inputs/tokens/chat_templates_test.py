# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Chat templates of folders of Hugging Face, as text and as turns."""

from __future__ import annotations

import json

import pytest

from pax.inputs.tokens import chat_templates

USER = {'role': 'user', 'content': 'Q'}
ANSWER = {'role': 'assistant', 'content': 'A'}
# Removes the reasoning from earlier answers, as that of Qwen3.
FORGETFUL = (
  '{% for message in messages %}'
  '{% if loop.last %}{{ message.content }}'
  "{% else %}{{ message.content.split('|')[-1] }}{% endif %};"
  '{% endfor %}'
)


def template_of(folder, text=None, **config) -> chat_templates.ChatTemplate:
  if text is not None:
    (folder / 'chat_template.jinja').write_text(text)
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  return chat_templates.ChatTemplate.config(folder=str(folder)).Instantiate()


def test_special_tokens_have_their_text(tmp_path):
  made = template_of(
    tmp_path,
    '{{ bos_token }}{{ messages[0].content }}{{ eos_token }}',
    bos_token={'content': '<s>', 'special': True},
    eos_token='</s>',
    add_bos_token=True,
  )
  assert made.prompt([USER]) == '<s>Q</s>'


def test_functions_of_transformers(tmp_path):
  text = (
    '{% if tools is not none or documents is not none %}tools{% endif %}'
    "{{ strftime_now('%d %b %Y') }} {{ messages[0].tools | tojson(indent=1) }}"
    '{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}'
    '{% endfor %}'
  )
  made = template_of(tmp_path, text)
  assert made.prompt([{'tools': {'ü': "<'>"}}]) == (
    '26 Jul 2024 {\n "ü": "<\'>"\n}1'
  )


@pytest.mark.parametrize(
  'entry',
  [
    'of the config',
    [
      {'name': 'tool_use', 'template': 'other'},
      {'name': 'default', 'template': 'of the config'},
    ],
  ],
)
def test_the_template_may_be_in_the_config(entry, tmp_path):
  assert (
    template_of(tmp_path, chat_template=entry).prompt([]) == 'of the config'
  )
  # A file takes precedence, as in transformers.
  made = template_of(tmp_path, 'of the file', chat_template=entry)
  assert made.prompt([]) == 'of the file'


def test_a_prompt_has_no_marks(tmp_path):
  text = (
    '{% for message in messages %}'
    '{%- generation -%} {{ message.content }} {%- endgeneration -%} |'
    '{% endfor %}'
  )
  made = template_of(tmp_path, text)
  assert made.prompt([ANSWER, ANSWER]) == 'A|A|'
  assert made.turns([ANSWER, ANSWER]) == [
    ('', False),
    ('A', True),
    ('|', False),
    ('A', True),
    ('|', False),
  ]
  assert [is_learned for _, is_learned in made.turns([ANSWER, ANSWER], 1)] == [
    *[False] * 3,
    *[True, False],
  ]


@pytest.mark.parametrize('content', ['A so', 'A so ', ' A', ''])
def test_the_last_message_is_continued(content, tmp_path):
  form = '{{ messages[0].content }};{{ messages[1].content | trim }};'
  message = {'role': 'assistant', 'content': content}
  prompt = template_of(tmp_path, form).continuation_prompt([USER, message])
  assert prompt == (f'Q;{content.strip()}' if content else 'Q;;')
  made = template_of(tmp_path, '{{ messages[0].content }}')
  with pytest.raises(ValueError, match='must write the last message'):
    made.continuation_prompt([USER, {'role': 'assistant', 'content': 'A'}])


def test_answers_are_what_they_add(tmp_path):
  made = template_of(tmp_path, FORGETFUL)
  assert made.turns([USER, ANSWER]) == [
    ('Q;', False),
    ('A;', True),
    ('', False),
  ]


def test_a_template_that_rewrites_answers_is_refused(tmp_path):
  made = template_of(tmp_path, FORGETFUL)
  reasoned = {'role': 'assistant', 'content': 'why|A'}
  messages = [USER, reasoned, USER, ANSWER]
  with pytest.raises(ValueError, match='leave earlier messages unchanged, got'):
    made.turns(messages)
  # The first answer may be given.
  assert made.turns(messages, 3) == [
    ('Q;A;Q;', False),
    ('A;', True),
    ('', False),
  ]


def test_noncharacters_are_refused(tmp_path):
  made = template_of(tmp_path, FORGETFUL)
  with pytest.raises(ValueError, match=r'U\+FDD0'):
    made.turns([{'role': 'user', 'content': 'a\ufdd1'}])


def test_a_folder_without_template_is_named(tmp_path):
  with pytest.raises(ValueError, match=f'{tmp_path} has no chat template'):
    template_of(tmp_path).prompt([USER])


def test_templates_cannot_reach_the_process(tmp_path):
  made = template_of(tmp_path, '{{ messages.__class__.__mro__ }}')
  with pytest.raises(
    ValueError, match=f'template of {tmp_path} fails: .*unsafe'
  ):
    made.prompt([USER])
