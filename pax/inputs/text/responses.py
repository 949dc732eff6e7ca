# SPDX-License-Identifier: Apache-2.0
"""Prompts with responses that a decoder learns to write."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pax.inputs.rows import packing, row_input
from pax.inputs.text import conversations
from pax.inputs.tokens import chat_templates

# Field of an object with the messages of a conversation.
_MESSAGES = 'messages'


class ResponseInput(conversations.ConversationInput, row_input.RowInput):
  """Packed conversations; the loss is that of the tokens of responses.

  An object has either `messages`, `[{'role': 'user', 'content': text}, ...]`,
  whose responses are those of role assistant, or a prompt and a completion.
  Examples share rows; those without a response are left out. The text is
  tokenized once for each machine, into the cache, and packed in memory.
  """

  # Field of the text of a response.
  completion_field: str = 'completion'

  @property
  def row_settings(self) -> Mapping[str, Any]:
    field = {'completion_field': self.completion_field}
    return {**super().row_settings, **field}

  @functools.cached_property
  def sources(self) -> Sequence[row_input.RowSource]:
    """The packed examples.

    Raises:
      ValueError: A line is no example, or none has a response.
    """
    examples = self.examples(self._texts)
    kept = [each for each in examples if each.has_labels]
    self.check_left_out(len(examples), len(kept))
    lengths = [each.num_labels for each in kept]
    plan = packing.plan(lengths, self.seq_len)
    return [conversations.ResponseRows(kept, plan)]

  def prompt_of(self, place: str, fields: conversations.Fields) -> bytes:
    """Returns the prompt of a pair, or the messages before the first answer.

    Args:
      place: Where the object is.
      fields: The object.

    Raises:
      ValueError: It has no messages, and no texts of a pair.
    """
    if _MESSAGES in fields:
      messages = chat_templates.messages_of(place, fields)
      roles = [message.get('role') for message in messages]
      end = roles.index('assistant') if 'assistant' in roles else None
      return json.dumps(messages[:end], sort_keys=True).encode()
    prompt = fields.get(self.prompt_field)
    completion = fields.get(self.completion_field)
    if isinstance(prompt, str) and isinstance(completion, str):
      return prompt.encode()
    raise ValueError(
      f'{place} must be an object with {_MESSAGES!r}, or with texts'
      f' {self.prompt_field!r} and {self.completion_field!r}, got'
      f' {str(dict(fields))[:80]}; set PROMPT_FIELD and COMPLETION_FIELD'
    )

  def _texts(
    self, place: str, fields: conversations.Fields
  ) -> tuple[conversations.ResponseText]:
    if _MESSAGES in fields:
      return (self.conversation(place, fields[_MESSAGES]),)
    prompt, completion = (
      fields[name] for name in (self.prompt_field, self.completion_field)
    )
    return (self.pair(prompt, completion),)
