# SPDX-License-Identifier: Apache-2.0
"""Prompts with responses that a decoder learns to write."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Int, Int64

from pax.inputs.records import text_files
from pax.inputs.rows import batch_types, packed_rows, packing, row_input
from pax.inputs.text import text_corpus
from pax.inputs.tokens import chat_templates, token_corpus
from praxis import pax_fiddle, value_domains

# Field of an object with the messages of a conversation.
_MESSAGES = 'messages'


@dataclasses.dataclass(frozen=True)
class _Example:
  """Tokens, and which of them the model learns to write."""

  ids: Int[np.ndarray, ' T']
  is_response: Bool[np.ndarray, ' T']


class ResponseInput(text_corpus.TextCorpusInput, row_input.RowInput):
  """Packed conversations; the loss is that of the tokens of responses.

  Files have JSON objects, one per line. Either `messages` is a conversation,
  `[{'role': 'user', 'content': text}, ...]`, whose responses are the messages
  of role assistant; or there are a prompt and a completion. A prompt has the
  tokens that decoding gives it; a completion ends with eos. Longer examples
  than a row are truncated, and left out where no response remains. The text is
  tokenized and packed in memory on first use.
  """

  # Length of a row.
  seq_len: int = value_domains.field(1024, ge=1)
  # Turns messages into text; None accepts no messages.
  chat_template: chat_templates.ChatTemplate | None = pax_fiddle.instance_field(
    None
  )
  # Fields of the texts of a pair.
  prompt_field: str = 'prompt'
  completion_field: str = 'completion'

  @property
  def row_settings(self) -> Mapping[str, Any]:
    return {
      'seq_len': self.seq_len,
      'fields': [self.prompt_field, self.completion_field],
      'chat_template': self.chat_template and self.chat_template.digest,
    }

  @functools.cached_property
  def sources(self) -> Sequence[row_input.RowSource]:
    """The packed examples.

    Raises:
      ValueError: A line is no example, or none has a response.
    """
    limit = self.seq_len + 1
    truncated = [
      _Example(each.ids[:limit], each.is_response[:limit])
      for each in self._examples_of_files()
    ]
    # The first token is no label.
    kept = [each for each in truncated if each.is_response[1:].any()]
    if not kept:
      raise self.empty_error()
    if len(kept) < len(truncated):
      logging.warning(
        '%d of %d examples of %s have no response in their first %d tokens, and'
        ' are left out; set MAX_SEQ_LEN for longer rows',
        len(truncated) - len(kept),
        len(truncated),
        self.name,
        self.seq_len,
      )
    return [_ResponseRows(kept, self.seq_len)]

  def _examples_of_files(self) -> Iterator[_Example]:
    for path in self.paths:
      for place, value in text_files.json_lines(path):
        fields = value if isinstance(value, dict) else {}
        key = self._key(place, fields)
        is_held_out = text_files.is_held_out(key, self.held_out_percent)
        if is_held_out == self.held_out:
          yield self._example(place, fields)

  def _key(self, place: str, fields: Mapping[str, Any]) -> bytes:
    """Returns what decides whether an example is held out: its prompt.

    Raises:
      ValueError: The object has neither messages nor a pair of texts.
    """
    if _MESSAGES in fields:
      messages = chat_templates.messages_of(place, fields)
      roles = [message.get('role') for message in messages]
      end = roles.index('assistant') if 'assistant' in roles else None
      return json.dumps(messages[:end], sort_keys=True).encode()
    prompt = fields.get(self.prompt_field)
    if isinstance(prompt, str) and isinstance(
      fields.get(self.completion_field), str
    ):
      return prompt.encode()
    raise ValueError(
      f'{place} must be an object with {_MESSAGES!r}, or with texts'
      f' {self.prompt_field!r} and {self.completion_field!r}, got'
      f' {str(dict(fields))[:80]}; set PROMPT_FIELD and COMPLETION_FIELD'
    )

  def _example(self, place: str, fields: Mapping[str, Any]) -> _Example:
    if _MESSAGES in fields:
      if self.chat_template is None:
        raise chat_templates.missing_error(place)
      return self._tokenized(self.chat_template.turns(fields[_MESSAGES]))
    prompt = fields[self.prompt_field]
    example = self._tokenized(
      [
        chat_templates.Turn(prompt, is_response=False),
        chat_templates.Turn(fields[self.completion_field], is_response=True),
      ]
    )
    tokenizer, content = self.fitted_tokenizer, prompt.encode()
    decoded = tokenizer.encode_prompt(content)
    special_ids = decoded[: len(decoded) - len(tokenizer.encode(content))]
    return _Example(
      np.concatenate([special_ids, example.ids, [tokenizer.eos_id]]),
      np.concatenate([[False] * len(special_ids), example.is_response, [True]]),
    )

  def _tokenized(self, turns: Sequence[chat_templates.Turn]) -> _Example:
    """Returns the tokens of a text; the model writes those of its responses."""
    encode = self.fitted_tokenizer.encode
    # Parts of a text may have other tokens than the text, such as a space
    # before each.
    ids = encode(''.join(turn.text for turn in turns).encode())
    is_response = np.zeros(len(ids), bool)
    text, start = '', 0
    for turn in turns[:-1]:
      text += turn.text
      end = max(start, _common_length(encode(text.encode()), ids))
      is_response[start:end] = turn.is_response
      start = end
    is_response[start:] = turns[-1].is_response
    return _Example(ids, is_response)


class _ResponseRows(packed_rows.PackedRows):
  """Packed examples, whose weights are 1 for tokens of responses only."""

  def __init__(self, examples: Sequence[_Example], seq_len: int):
    starts = np.cumsum([0, *(len(each.ids) for each in examples)])
    corpus = token_corpus.Corpus(
      tokens=np.concatenate([each.ids for each in examples]), starts=starts
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


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
  """Returns the number of equal elements before the first that differ."""
  length = min(len(a), len(b))
  differ = np.flatnonzero(a[:length] != b[:length])
  return int(differ[0]) if len(differ) else length
