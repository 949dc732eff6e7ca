# SPDX-License-Identifier: Apache-2.0
"""Prompts with responses that a decoder learns to write."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from pax.inputs.rows import batch_types, packed_rows, packing, row_input
from pax.inputs.text import conversations
from pax.inputs.text.conversations import ResponseTokens
from pax.inputs.tokens import chat_templates, token_corpus

# Field of an object with the messages of a conversation.
_MESSAGES = 'messages'


class ResponseInput(conversations.ConversationInput, row_input.RowInput):
  """Packed conversations; the loss is that of the tokens of responses.

  An object has either `messages`, `[{'role': 'user', 'content': text}, ...]`,
  whose responses are those of role assistant, or a prompt and a completion.
  Examples share rows; those without a response are left out. The text is
  tokenized and packed in memory on first use.
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
    examples = [self._tokens(*located) for located in self.objects()]
    kept = [each for each in examples if each.has_labels]
    self.check_left_out(len(examples), len(kept))
    return [_ResponseRows(kept, self.seq_len)]

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

  def _tokens(self, place: str, fields: conversations.Fields) -> ResponseTokens:
    if _MESSAGES in fields:
      return self.tokens_of_messages(place, fields[_MESSAGES])
    return self.tokens_of_pair(
      fields[self.prompt_field], fields[self.completion_field]
    )


class _ResponseRows(packed_rows.PackedRows):
  """Packed examples, whose weights are 1 for tokens of responses only."""

  def __init__(self, examples: Sequence[ResponseTokens], seq_len: int):
    starts = np.cumsum([0, *(len(each.ids) for each in examples)])
    corpus = token_corpus.Corpus(
      tokens=np.concatenate([each.ids for each in examples]).astype(np.int32),
      starts=starts,
    )
    plan = packing.plan(corpus.lengths, seq_len)
    super().__init__(corpus, plan)
    is_response = np.concatenate([each.is_response for each in examples])
    # Packed as the tokens are, so that it has the label's place.
    self._is_response = token_corpus.Corpus(
      tokens=is_response.astype(np.uint8), starts=starts
    )

  def write_tokens(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    super().write_tokens(indices, batch, places)
    marks = packing.empty_batch(len(indices), self._plan.seq_len)
    packing.write_rows(marks, indices, self._is_response, self._plan)
    batch.weights[places] = marks.labels
