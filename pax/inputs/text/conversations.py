# SPDX-License-Identifier: Apache-2.0
"""Inputs whose examples are prompts with responses of the model."""

from __future__ import annotations

import abc
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Int, Int64

from pax.inputs.records import text_files
from pax.inputs.rows import batch_types, packed_rows, packing
from pax.inputs.text import response_tokens, text_corpus
from pax.inputs.text.response_tokens import ResponseTokens
from pax.inputs.tokens import chat_templates, token_corpus
from praxis import pax_fiddle, value_domains

Fields = Mapping[str, Any]
Messages = Sequence[chat_templates.Message]

# Number of examples that are tokenized at once, on all cores.
_NUM_EXAMPLES = 1024


class ResponseText(NamedTuple):
  """The text of a prompt with responses."""

  # Its parts, by who writes them.
  turns: Sequence[chat_templates.Turn]
  # Whether it needs the special tokens of a prompt, and eos; a chat template
  # writes them.
  is_plain: bool


# (place, object) -> its examples.
ReadFn = Callable[[str, Fields], Sequence[ResponseText]]


class ConversationInput(text_corpus.TextCorpusInput, abc.ABC):
  """Base of inputs of files with JSON objects, one per line.

  Prompts and responses are texts or messages. A prompt has the tokens that
  decoding gives it; a response that is a text ends with eos. Examples that are
  longer than a row are truncated.
  """

  # Length of a row.
  seq_len: int = value_domains.field(1024, ge=1)
  # Turns messages into text; None accepts no messages.
  chat_template: chat_templates.ChatTemplate | None = pax_fiddle.instance_field(
    None
  )
  # Field of the text of a prompt.
  prompt_field: str = 'prompt'

  @property
  def row_settings(self) -> Mapping[str, Any]:
    return {
      'seq_len': self.seq_len,
      'prompt_field': self.prompt_field,
      'chat_template': self.chat_template and self.chat_template.digest,
    }

  @abc.abstractmethod
  def prompt_of(self, place: str, fields: Fields) -> bytes:
    """Returns the prompt of an object, which decides whether it is held out.

    Args:
      place: Where the object is.
      fields: The object.

    Raises:
      ValueError: It has no prompt or no response.
    """

  def objects(self) -> Iterator[tuple[str, Fields]]:
    """Yields place and fields of the objects of this side of the split.

    Raises:
      ValueError: A line has no prompt or no response.
    """
    for path in self.paths:
      for place, value in text_files.json_lines(path):
        fields = value if isinstance(value, dict) else {}
        is_held_out = text_files.is_held_out(
          self.prompt_of(place, fields), self.held_out_percent
        )
        if is_held_out == self.held_out:
          yield place, fields

  def examples(self, read: ReadFn) -> list[ResponseTokens]:
    """Returns the examples of all objects of this side of the split.

    They are tokenized on all cores, or are those of an earlier start.

    Args:
      read: Returns the examples of an object.
    """
    tokenizer, cls = self.fitted_tokenizer, type(self)
    # What decides the tokens of other classes is unknown.
    is_known = cls.__module__.startswith(f'{__package__}.')
    if not is_known or (vocabulary := tokenizer.vocabulary) is None:
      return list(self._tokenize(read))
    identity = {
      'input': cls.__name__,
      'files': [
        [path, (status := os.stat(path)).st_size, status.st_mtime_ns]
        for path in self.paths
      ],
      'tokenizer': vocabulary.digest,
      'special_ids': [tokenizer.bos_id, tokenizer.eos_id],
      'side': [self.held_out_percent, self.held_out],
      'settings': dict(self.row_settings),
    }
    return response_tokens.cached(identity, lambda: list(self._tokenize(read)))

  def check_left_out(self, num_examples: int, num_kept: int) -> None:
    """Warns of examples without a response in their first tokens.

    Args:
      num_examples: The number of examples.
      num_kept: The number of those with a response.

    Raises:
      ValueError: None has one.
    """
    if not num_examples:
      raise self.empty_error()
    if not num_kept:
      raise ValueError(
        f'examples of {self.name!r} must have a response in their first'
        f' {self.seq_len} tokens, got none in {num_examples}; set MAX_SEQ_LEN'
        ' for longer rows, or add messages of role assistant'
      )
    if num_kept < num_examples:
      logging.warning(
        '%d of %d examples of %s have no response in their first %d tokens, and'
        ' are left out; set MAX_SEQ_LEN for longer rows',
        num_examples - num_kept,
        num_examples,
        self.name,
        self.seq_len,
      )

  def pair(self, prompt: str, response: str) -> ResponseText:
    """Returns the text of a prompt and a response.

    Args:
      prompt: The text before the response.
      response: The text that the model writes.
    """
    turns = [
      chat_templates.Turn(prompt, is_response=False),
      chat_templates.Turn(response, is_response=True),
    ]
    return ResponseText(turns, is_plain=True)

  def conversation(
    self, place: str, messages: Messages, num_given: int = 0
  ) -> ResponseText:
    """Returns the text of a conversation; the model writes its answers.

    Args:
      place: Where the messages are.
      messages: The messages.
      num_given: Number of the first ones that are given, answers too.

    Raises:
      ValueError: There is no chat template, or it refuses the messages.
    """
    if self.chat_template is None:
      raise chat_templates.missing_error(place)
    turns = self.chat_template.turns(messages, num_given)
    return ResponseText(turns, is_plain=False)

  @functools.cached_property
  def _special_ids(self) -> Int[np.ndarray, ' N']:
    return self.fitted_tokenizer.encode_prompt(b'')

  def _tokenize(self, read: ReadFn) -> Iterator[ResponseTokens]:
    texts = (text for located in self.objects() for text in read(*located))
    while chunk := list(itertools.islice(texts, _NUM_EXAMPLES)):
      # Parts of a text may have other tokens than the text, such as a space
      # before each: tokens of its beginnings tell where parts end.
      beginnings = [
        list(itertools.accumulate(turn.text for turn in text.turns))
        for text in chunk
      ]
      encoded = iter(
        self.fitted_tokenizer.encode_all(
          [x.encode() for x in itertools.chain.from_iterable(beginnings)]
        )
      )
      for text in chunk:
        yield self._tokens(
          text, list(itertools.islice(encoded, len(text.turns)))
        )

  def _tokens(
    self, text: ResponseText, beginnings: Sequence[Int[np.ndarray, ' N']]
  ) -> ResponseTokens:
    """Returns the tokens of a text; `beginnings` are those up to each turn."""
    ids = beginnings[-1]
    is_response = np.zeros(len(ids), bool)
    start = 0
    for turn, beginning in zip(text.turns, beginnings, strict=True):
      end = max(start, _common_length(beginning, ids))
      is_response[start:end] = turn.is_response
      start = end
    if text.is_plain:
      # What precedes a prompt, such as bos.
      first_ids, last_id = self._special_ids, self.fitted_tokenizer.eos_id
      ids = np.concatenate([first_ids, ids, [last_id]])
      is_response = np.concatenate(
        [[False] * len(first_ids), is_response, [True]]
      )
    # The last token is only a label.
    limit = self.seq_len + 1
    return ResponseTokens(ids[:limit], is_response[:limit])


class ResponseRows(packed_rows.PackedRows):
  """Examples in rows, whose weights are 1 for tokens of responses only."""

  def __init__(
    self, examples: Sequence[ResponseTokens], plan: packing.PackingPlan
  ):
    """Combines examples and plan.

    Args:
      examples: The examples.
      plan: The placement of them in rows.
    """
    starts = np.cumsum([0, *(len(each.ids) for each in examples)])
    ids = np.concatenate([each.ids for each in examples])
    tokens = ids.astype(np.int32)
    super().__init__(token_corpus.Corpus(tokens=tokens, starts=starts), plan)
    is_response = np.concatenate([each.is_response for each in examples])
    # Placed as the tokens are, so that it has the label's place.
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
