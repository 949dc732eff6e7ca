# SPDX-License-Identifier: Apache-2.0
"""Prompts for a language model to continue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from pax.inputs.records import text_files
from pax.inputs.text import packed_text
from pax.inputs.tokens import chat_templates
from praxis import pax_fiddle, py_utils

NestedMap = py_utils.NestedMap


class PromptLmInput(packed_text.TextLmInput):
  """Batches of prompts, in the vocabulary of a training corpus.

  Prompts longer than `seq_len` are truncated. The last batch is padded with
  rows whose `eval_sample_weights` are 0.
  """

  # The prompts, in order.
  prompts: Sequence[str] = ()

  def __post_init__(self):
    super().__post_init__()
    if not self.prompts:
      raise ValueError(f'prompts of {self.name!r} must be at least one text')
    if isinstance(self.prompts, str):
      raise ValueError(
        f'prompts of {self.name!r} must be a sequence of texts, got the text'
        f' {self.prompts!r:.40}; write ({self.prompts!r:.40},)'
      )
    self._has_warned = False

  def get_next(self) -> NestedMap:
    """Returns the next PromptBatch.

    Raises:
      StopIteration: all prompts have been read.
    """
    batch_size = self.get_batch_size(self)
    first = self._examples + self.infeed_host_index * batch_size
    if self._examples >= len(self.prompts):
      raise StopIteration
    self._examples += self.get_global_batch_size(self)
    end = min(first + batch_size, len(self.prompts))
    shape = (batch_size, self.seq_len)
    batch = NestedMap(
      ids=np.zeros(shape, np.int32),
      paddings=np.ones(shape, np.float32),
      eval_sample_weights=np.zeros(batch_size, np.float32),
    )
    for i, index in enumerate(range(first, end)):
      ids = self._truncated(index, self.prompt_ids(index))
      batch.ids[i, : len(ids)] = ids
      batch.paddings[i, : len(ids)] = 0.0
      batch.eval_sample_weights[i] = 1.0
    return batch

  def prompt_ids(self, index: int) -> np.ndarray:
    """Returns the ids of a prompt, of any length."""
    [ids] = self.strings_to_ids([self.prompts[index]])
    return ids

  def _truncated(self, index: int, ids: np.ndarray) -> np.ndarray:
    """Returns the first ids of a prompt; warns of the first that is longer."""
    if len(ids) > self.seq_len and not self._has_warned:
      self._has_warned = True
      logging.warning(
        'Prompt %d of %s has %d tokens, and its last ones are left out, as are'
        ' those of other prompts of more than %d; set DECODE_SEQ_LEN, twice'
        ' that number, for longer prompts',
        index + 1,
        self.name,
        len(ids),
        self.seq_len,
      )
    return ids[: self.seq_len]

  @property
  def num_examples(self) -> int:
    """Number of prompts."""
    return len(self.prompts)


class PromptFileInput(PromptLmInput):
  """Batches of the prompts of a file.

  Each line of a file `*.jsonl` is an object with `prompt` or `text`, a string,
  or an object with `messages`, a conversation that the model continues; each
  line of any other file that is not empty is a prompt.
  """

  # The file; it replaces `prompts`.
  file: str = ''
  # Turns messages into text; None accepts no messages.
  chat_template: chat_templates.ChatTemplate | None = pax_fiddle.instance_field(
    None
  )

  def __post_init__(self):
    self._prompts = read_prompts(self.file, self.chat_template)
    if not self._prompts:
      raise ValueError(
        f'the file of prompts {self.file!r} must have a prompt per line, got'
        ' none; add some, or leave out PROMPTS_FILE'
      )
    self.prompts = tuple(prompt.text for prompt in self._prompts)
    super().__post_init__()

  def prompt_ids(self, index: int) -> np.ndarray:
    prompt = self._prompts[index]
    if prompt.is_conversation:
      # The template has written the special tokens.
      return self.fitted_tokenizer.encode(prompt.text.encode())
    return super().prompt_ids(index)


class Prompt(NamedTuple):
  """A text to continue."""

  text: str
  # Whether a chat template has written it.
  is_conversation: bool = False


def read_prompts(
  file: str, chat_template: chat_templates.ChatTemplate | None = None
) -> list[Prompt]:
  """Returns the prompts of a file; see `PromptFileInput`.

  Args:
    file: The file.
    chat_template: Turns messages into text; None accepts no messages.

  Raises:
    ValueError: The file does not exist, or a line has no prompt.
  """
  try:
    if file.endswith(text_files.JSON_LINES):
      return list(_json_prompts(file, chat_template))
    with open(file, encoding='utf-8') as f:
      return [Prompt(line.rstrip('\n')) for line in f if line.strip()]
  except FileNotFoundError as e:
    raise ValueError(
      f'the file of prompts {file!r} does not exist; it has a prompt per line,'
      f' or JSON objects with prompt if its name ends with'
      f' {text_files.JSON_LINES}'
    ) from e


def _json_prompts(
  file: str, chat_template: chat_templates.ChatTemplate | None
) -> Iterator[Prompt]:
  for place, value in text_files.json_lines(file):
    if isinstance(value, dict) and 'messages' in value:
      messages = chat_templates.messages_of(place, value)
      if chat_template is None:
        raise chat_templates.missing_error(place)
      yield Prompt(chat_template.prompt(messages), is_conversation=True)
    else:
      yield Prompt(text_files.json_text(place, value, ('prompt', 'text')))
