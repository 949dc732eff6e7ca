# SPDX-License-Identifier: Apache-2.0
"""Prompts with a preferred and a dispreferred response."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from pax.inputs.rows import packing
from pax.inputs.text import conversations
from pax.inputs.text.response_tokens import ResponseTokens
from pax.inputs.tokens.chat_templates import is_conversation
from praxis import py_utils

NestedMap = py_utils.NestedMap


class _Pair(NamedTuple):
  """The preferred and the dispreferred response, each after the prompt."""

  chosen: ResponseTokens
  rejected: ResponseTokens


class _Half:
  """One response of each pair, in rows of its own."""

  def __init__(self, examples: Sequence[ResponseTokens], seq_len: int):
    self._seq_len = seq_len
    lengths = [each.num_labels for each in examples]
    plan = packing.one_per_row(lengths, seq_len)
    self._rows = conversations.ResponseRows(examples, plan)
    self._prompt_lengths = np.array(
      [np.argmax(each.is_response) for each in examples]
    )

  def read(self, indices: Int64[np.ndarray, ' N']) -> dict[str, np.ndarray]:
    """Returns the fields of a `DPOExampleHalf`, [N, seq_len]."""
    batch = packing.empty_batch(len(indices), self._seq_len)
    self._rows.write(indices, batch, np.arange(len(indices)))
    prompt_lengths = self._prompt_lengths[indices, np.newaxis]
    is_prompt = np.arange(self._seq_len) < prompt_lengths
    return {
      'inputs': batch.ids,
      'inputs_indicator': is_prompt.astype(np.int32),
      'labels/ids': batch.labels,
      'labels/weights': batch.weights,
      'paddings': batch.paddings,
      'segment_ids': batch.segment_ids,
      'segment_pos': batch.segment_pos,
    }


class PreferenceInput(conversations.ConversationInput):
  """Pairs of responses, one per row, as a `DPOExample`.

  An object has a prompt, a chosen and a rejected response: texts, or lists of
  messages. If the responses are messages and the prompt is not, the prompt is
  the messages with which both begin. Pairs without a response are left out.

  References:
    https://arxiv.org/abs/2305.18290
  """

  # Fields of the responses.
  chosen_field: str = 'chosen'
  rejected_field: str = 'rejected'

  @property
  def row_settings(self) -> Mapping[str, Any]:
    fields = {'response_fields': [self.chosen_field, self.rejected_field]}
    return {**super().row_settings, **fields}

  @property
  def num_examples(self) -> int:
    return len(self._pairs)

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    return NestedMap(
      {
        f'{name}/{field}': array
        for name, half in self._halves.items()
        for field, array in half.read(indices).items()
      }
    )

  def prompt_of(self, place: str, fields: conversations.Fields) -> bytes:
    prompt, _, _ = self._parts(place, fields)
    return json.dumps(prompt, sort_keys=True).encode()

  @functools.cached_property
  def _halves(self) -> dict[str, _Half]:
    chosen, rejected = zip(*self._pairs, strict=True)
    return {
      'y_w': _Half(chosen, self.seq_len),
      'y_l': _Half(rejected, self.seq_len),
    }

  @functools.cached_property
  def _pairs(self) -> list[_Pair]:
    responses = self.examples(self._texts)
    pairs = [
      _Pair(*both) for both in zip(responses[::2], responses[1::2], strict=True)
    ]
    kept = [pair for pair in pairs if all(x.has_labels for x in pair)]
    self.check_left_out(len(pairs), len(kept))
    return kept

  def _texts(
    self, place: str, fields: conversations.Fields
  ) -> tuple[conversations.ResponseText, conversations.ResponseText]:
    prompt, chosen, rejected = self._parts(place, fields)
    if isinstance(prompt, str):
      return self.pair(prompt, chosen), self.pair(prompt, rejected)
    return (
      self.conversation(place, [*prompt, *chosen], len(prompt)),
      self.conversation(place, [*prompt, *rejected], len(prompt)),
    )

  def _parts(
    self, place: str, fields: conversations.Fields
  ) -> tuple[Any, Any, Any]:
    """Returns prompt, chosen and rejected response: texts, or messages.

    Raises:
      ValueError: They are neither.
    """
    names = (self.prompt_field, self.chosen_field, self.rejected_field)
    prompt, chosen, rejected = (fields.get(name) for name in names)
    if is_conversation(chosen) and is_conversation(rejected):
      if is_conversation(prompt):
        return prompt, chosen, rejected
      equal = [a == b for a, b in zip(chosen, rejected, strict=False)]
      count = equal.index(False) if False in equal else len(equal)
      return chosen[:count], chosen[count:], rejected[count:]
    if all(isinstance(x, str) for x in (prompt, chosen, rejected)):
      return prompt, chosen, rejected
    raise ValueError(
      f'{place} must be an object with texts {", ".join(map(repr, names))}, or'
      f' with lists of messages, got {str(dict(fields))[:80]}; set'
      ' PROMPT_FIELD, CHOSEN_FIELD and REJECTED_FIELD'
    )
