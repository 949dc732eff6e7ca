# SPDX-License-Identifier: Apache-2.0
"""Chat templates of Hugging Face: conversations as the text a model reads.

They need the package `jinja2`.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from praxis import base_hyperparams

if TYPE_CHECKING:
  import jinja2

# `{'role': 'user', 'content': text}`; templates may read other fields.
Message = Mapping[str, Any]

_TEMPLATE_FILE = 'chat_template.jinja'
_CONFIG_FILE = 'tokenizer_config.json'
# Unicode noncharacters around what `{% generation %}` contains.
_FIRST, _LAST = '\ufdd0', '\ufdd1'
_GENERATED = re.compile(f'{_FIRST}(.*?){_LAST}', re.DOTALL)
_GENERATION_TAGS = re.compile(r'{%-?\s*(end)?generation\s*-?%}')


class Turn(NamedTuple):
  """Consecutive text of a conversation."""

  text: str
  # Whether the model writes it, and not the user or the template.
  is_response: bool


class ChatTemplate(base_hyperparams.FiddleBaseParameterizable):
  """The chat template of a folder with a model of Hugging Face.

  References:
    https://huggingface.co/docs/transformers/chat_templating
  """

  # Folder with chat_template.jinja, or tokenizer_config.json with
  # chat_template.
  folder: str = ''
  # Today for templates that ask, in ISO format; a fixed day, so that a job that
  # is resumed reads the same text.
  date: str = '2024-07-26'

  @property
  def digest(self) -> str:
    """Hash of what decides the text of messages."""
    content = _to_json([self._source, self._special_tokens, self.date])
    return hashlib.sha256(content.encode()).hexdigest()

  def prompt(self, messages: Sequence[Message]) -> str:
    """Returns the text after which a model answers the last message."""
    return _GENERATED.sub(r'\1', self._render(messages, is_prompt=True))

  def continuation_prompt(self, messages: Sequence[Message]) -> str:
    """Returns the text after which a model continues the last message.

    Raises:
      ValueError: The template does not write the content of that message.
    """
    text = _GENERATED.sub(r'\1', self._render(messages))
    content = messages[-1]['content']
    # Templates may trim it.
    for written in filter(None, (content, content.rstrip(), content.strip())):
      before, found, _ = text.rpartition(written)
      if found:
        return before + written
    if not content.strip():
      return text
    raise ValueError(
      f'the chat template of {self.folder} must write the last message, got'
      f' {text[-60:]!r} for {content[-60:]!r}; leave it out'
    )

  def turns(
    self, messages: Sequence[Message], num_given: int = 0
  ) -> list[Turn]:
    """Returns the text of a conversation, divided by who writes it.

    Responses are what the template marks by `{% generation %}`. Without these
    they are what each message of role assistant adds to its prompt.

    Args:
      messages: The conversation.
      num_given: Number of the first messages, which have no responses.

    Raises:
      ValueError: The template writes an earlier message otherwise when another
        follows, so that no text is that of all responses.
    """
    text = self._render(messages)
    is_answer = [message.get('role') == 'assistant' for message in messages]
    if _GENERATION_TAGS.search(self._source or ''):
      return list(_marked_turns(text, sum(is_answer[:num_given])))
    turns, done = [], ''
    for end in range(num_given + 1, len(messages) + 1):
      if is_answer[end - 1]:
        prompt = self._render(messages[: end - 1], is_prompt=True)
        answered = self._render(messages[:end])
        turns.append(Turn(self._added(done, prompt), False))
        turns.append(Turn(self._added(prompt, answered), True))
        done = answered
    return [*turns, Turn(self._added(done, text), False)]

  def _added(self, start: str, text: str) -> str:
    if not text.startswith(start):
      raise ValueError(
        f'the chat template of {self.folder} must leave earlier messages'
        f' unchanged, got {text[-60:]!r} after {start[-60:]!r}; write a'
        ' conversation for each response, or mark responses in the template by'
        ' {% generation %}'
      )
    return text[len(start) :]

  def _render(
    self, messages: Sequence[Message], *, is_prompt: bool = False
  ) -> str:
    content = _to_json(list(messages))
    if _FIRST in content or _LAST in content:
      raise ValueError(
        'messages must not have the noncharacters U+FDD0 and U+FDD1, got'
        f' {content[:80]!r}; remove them'
      )
    template = self._template
    import jinja2

    try:
      return template.render(
        **self._special_tokens,
        messages=list(messages),
        add_generation_prompt=is_prompt,
        # Templates compare them with none, as transformers passes it.
        tools=None,
        documents=None,
      )
    except jinja2.TemplateError as e:
      raise ValueError(
        f'the chat template of {self.folder} fails: {e}; correct the template'
        f' or the messages {content[:80]}'
      ) from e

  @functools.cached_property
  def _source(self) -> str | None:
    """The template; None if the folder has none."""
    file = pathlib.Path(self.folder, _TEMPLATE_FILE)
    if file.is_file():
      return file.read_text(encoding='utf-8')
    template = self._config.get('chat_template')
    if isinstance(template, list):
      template = {x['name']: x['template'] for x in template}.get('default')
    return template

  @functools.cached_property
  def _config(self) -> Mapping[str, Any]:
    file = pathlib.Path(self.folder, _CONFIG_FILE)
    return json.loads(file.read_text()) if file.is_file() else {}

  @property
  def bos_token(self) -> str | None:
    """Text of bos, with which prompts may start."""
    return self._special_tokens.get('bos_token')

  @property
  def _special_tokens(self) -> dict[str, str]:
    """The texts of bos_token, eos_token and others."""
    tokens = {}
    for name, value in self._config.items():
      text = value.get('content') if isinstance(value, Mapping) else value
      if name.endswith('_token') and isinstance(text, str):
        tokens[name] = text
    return tokens

  @functools.cached_property
  def _template(self) -> jinja2.Template:
    """The compiled template.

    Raises:
      ValueError: The folder has none, or jinja2 is not installed.
    """
    if not self._source:
      raise ValueError(
        f'the model in {self.folder} has no chat template; add'
        f' {_TEMPLATE_FILE}, or write prompt and completion instead of messages'
      )
    try:
      from jinja2 import sandbox
    except ImportError as e:
      raise ValueError(
        f'the chat template of {self.folder} needs the package jinja2, which is'
        ' not installed; pip install jinja2'
      ) from e
    environment = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=['jinja2.ext.loopcontrols'],
    )
    environment.filters['tojson'] = _to_json
    environment.globals['raise_exception'] = _raise
    environment.globals['strftime_now'] = self._format_date
    # Jinja does not know these tags.
    source = _GENERATION_TAGS.sub(_mark, self._source)
    return environment.from_string(source)

  def _format_date(self, form: str) -> str:
    return datetime.date.fromisoformat(self.date).strftime(form)


def messages_of(place: str, fields: Mapping[str, Any]) -> list[Message]:
  """Returns the field `messages` of an object.

  Args:
    place: Where the object is.
    fields: The object.

  Raises:
    ValueError: It has no list of objects.
  """
  messages = fields.get('messages')
  if not is_conversation(messages):
    raise ValueError(
      f"{place} must have a list of objects 'messages', got"
      f" {str(messages)[:80]}; e.g. {{'role': 'user', 'content': 'Hello'}}"
    )
  return messages


def is_conversation(value: Any) -> TypeGuard[list[Message]]:
  """Returns whether a value of JSON is a list of messages.

  Args:
    value: The value.
  """
  return isinstance(value, list) and all(isinstance(x, dict) for x in value)


def missing_error(place: str) -> ValueError:
  """Returns the error of messages without a template."""
  return ValueError(
    f'{place} has messages, which need a chat template; set MODEL_DIR to the'
    ' folder of a model that has one'
  )


def _mark(tag: re.Match[str]) -> str:
  """Returns the expression that a tag of generation becomes."""
  left, right = ('-' if x == '-' else '' for x in (tag[0][2], tag[0][-3]))
  mark = _LAST if tag[1] else _FIRST
  return f'{{{{{left} "{mark}" {right}}}}}'


def _marked_turns(text: str, num_given: int) -> Iterator[Turn]:
  """Yields the parts of a text, without the first marks."""
  # Odd parts are between marks.
  for index, part in enumerate(_GENERATED.split(text)):
    yield Turn(part, index % 2 == 1 and index // 2 >= num_given)


def _to_json(value: Any, indent: int | None = None) -> str:
  # That of Jinja escapes what HTML reserves.
  return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
  raise ValueError(f'the chat template refuses the messages: {message}')
