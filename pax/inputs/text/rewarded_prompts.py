# SPDX-License-Identifier: Apache-2.0
"""Prompts whose responses a language model learns from their rewards."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float32, Int, Int64

from pax.inputs.rows import index_permutation, packing
from pax.inputs.text import conversations
from pax.inputs.tokens import chat_templates
from praxis import lazy_loader, py_utils, value_domains
from praxis.base_input.rewards import REWARD, REWARD_STD

NestedMap = py_utils.NestedMap
Examples = Sequence[conversations.Fields]
# (objects with a prompt, a response to each) -> reward of each response.
RewardFn = Callable[[Examples, Sequence[str]], Sequence[float]]

_MESSAGES = 'messages'
_NUMBER = value_domains.Interval()


class RewardedPromptInput(conversations.ConversationInput):
  """Prompts, and functions that reward responses to them.

  An object has a prompt, a text or messages, or the field `messages`; its other
  fields are for the reward functions. Training repeats each prompt in
  `num_samples` adjacent rows, with room for a response; evaluation has each
  once, in rows of `max_prompt_len`. Longer prompts are left out.
  """

  # Weight of each reward function, `module:function`. It returns a number for
  # each response, from the objects with the prompts and the responses.
  reward_functions: Mapping[str, float] = dataclasses.field(
    default_factory=dict
  )
  # Number of rows with the same prompt in training.
  num_samples: int = value_domains.field(8, ge=2)
  # Number of batches that are sampled at once, and how often each is learned
  # from before the next are sampled.
  rollout_batches: int = value_domains.field(1, ge=1)
  rollout_epochs: int = value_domains.field(1, ge=1)
  # Number of tokens of the longest prompt.
  max_prompt_len: int = value_domains.field(512, ge=1)

  def __post_init__(self):
    super().__post_init__()
    _check_functions(self.reward_functions, self.name)
    if self.max_prompt_len >= self.seq_len:
      raise ValueError(
        'max_prompt_len must be less than seq_len, which leaves room for a'
        f' response, got {self.max_prompt_len} and {self.seq_len}; set'
        ' MAX_PROMPT_LEN or MAX_SEQ_LEN'
      )
    batch_size = self.get_batch_size(self)
    if self.is_training and batch_size % self.num_samples:
      raise ValueError(
        f'the batch of a process must be a multiple of {self.num_samples} rows,'
        f' the samples of a prompt, got {batch_size}; set BATCH_SIZE or'
        ' NUM_SAMPLES'
      )
    self._reward_functions: dict[str, RewardFn] = {
      name: lazy_loader.import_function(name, 'REWARDS')
      for name in self.reward_functions
    }

  @property
  def updates_per_rollout(self) -> int:
    """Number of updates between two rollouts."""
    return self.rollout_batches * self.rollout_epochs

  @property
  def row_settings(self) -> Mapping[str, Any]:
    return {
      **super().row_settings,
      'num_samples': self.num_samples,
      'max_prompt_len': self.max_prompt_len,
    }

  @property
  def num_examples(self) -> int:
    """Number of rows in an epoch."""
    return len(self._prompts) * self._rows_per_prompt

  def indices(self, positions: Int64[np.ndarray, ' N']) -> np.ndarray:
    """Returns the indices of the prompts in rows of the infinite sequence."""
    numbers = positions // self._rows_per_prompt
    if self.is_training:
      return index_permutation.endless(numbers, len(self._prompts), self.seed)
    return numbers % len(self._prompts)

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    length = self.seq_len if self.is_training else self.max_prompt_len
    batch = packing.empty_batch(len(indices), length)
    for row, index in enumerate(indices):
      ids, _ = self._prompts[index]
      batch.ids[row, : len(ids)] = ids
      batch.paddings[row, : len(ids)] = 0.0
    batch.prompt_index = indices.astype(np.int32)
    if self.is_training:
      batch.advantages = np.zeros(len(indices), np.float32)
      if self.updates_per_rollout > 1:
        batch.old_log_probs = np.zeros(batch.ids.shape, np.float32)
    return batch

  def rewards(
    self, prompt_indices: Int[np.ndarray, ' N'], responses: Sequence[str]
  ) -> dict[str, Float32[np.ndarray, ' N']]:
    """Returns the reward of each response, and its terms if there are several.

    Args:
      prompt_indices: The prompt of each response, `prompt_index` of a batch.
      responses: The responses.

    Raises:
      ValueError: A function does not return a finite number for each.
    """
    examples = [self._prompts[index][1] for index in prompt_indices]
    terms = {
      name: _term(name, function, examples, responses)
      for name, function in self._reward_functions.items()
    }
    weights = np.array(list(self.reward_functions.values()), np.float32)
    total = weights @ np.stack(list(terms.values()))
    if len(terms) == 1:
      return {REWARD: total}
    named = {_term_name(name): term for name, term in terms.items()}
    return {REWARD: total, **named}

  def prompt_of(self, place: str, fields: conversations.Fields) -> bytes:
    prompt = self._prompt(place, fields)
    if isinstance(prompt, str):
      return prompt.encode()
    return json.dumps(prompt, sort_keys=True).encode()

  @property
  def _rows_per_prompt(self) -> int:
    return self.num_samples if self.is_training else 1

  @functools.cached_property
  def _prompts(
    self,
  ) -> list[tuple[Int[np.ndarray, ' T'], conversations.Fields]]:
    """The ids of each prompt, and the object that has it."""
    prompts = [
      (self._ids(place, fields), fields) for place, fields in self.objects()
    ]
    kept = [each for each in prompts if len(each[0]) <= self.max_prompt_len]
    if not prompts:
      raise self.empty_error()
    if not kept:
      raise ValueError(
        f'a prompt of {self.name!r} must have at most {self.max_prompt_len}'
        f' tokens, got more in each of {len(prompts)}; set MAX_PROMPT_LEN for'
        ' longer ones'
      )
    if len(kept) < len(prompts):
      logging.warning(
        '%d of %d prompts of %s have more than %d tokens, and are left out; set'
        ' MAX_PROMPT_LEN for longer ones',
        len(prompts) - len(kept),
        len(prompts),
        self.name,
        self.max_prompt_len,
      )
    return kept

  def _ids(
    self, place: str, fields: conversations.Fields
  ) -> Int[np.ndarray, ' T']:
    prompt = self._prompt(place, fields)
    if isinstance(prompt, str):
      return self.fitted_tokenizer.encode_prompt(prompt.encode())
    if self.chat_template is None:
      raise chat_templates.missing_error(place)
    # The template writes the special tokens.
    return self.fitted_tokenizer.encode(
      self.chat_template.prompt(prompt).encode()
    )

  def _prompt(
    self, place: str, fields: conversations.Fields
  ) -> str | list[chat_templates.Message]:
    prompt = fields.get(self.prompt_field, fields.get(_MESSAGES))
    is_text = isinstance(prompt, str)
    if not is_text and not (chat_templates.is_conversation(prompt) and prompt):
      raise ValueError(
        f'{place} must be an object with {self.prompt_field!r}, a text or'
        f' messages, or with {_MESSAGES!r}, got {str(dict(fields))[:80]}; set'
        ' PROMPT_FIELD'
      )
    if not is_text and prompt[-1].get('role') == 'assistant':
      raise ValueError(
        f'{place} must have messages before the answer of the model, got a last'
        f' one of role assistant, {str(prompt[-1])[:80]}; leave it out'
      )
    return prompt


def _term_name(function: str) -> str:
  """Returns the name of `module:function` in metrics."""
  return f'{REWARD}_{function.partition(":")[2]}'


def _check_functions(functions: Mapping[str, float], name: str | None) -> None:
  """Checks the reward functions of the input `name`.

  Raises:
    ValueError: They are no functions with weights, or their metrics would have
      equal names.
  """
  is_valid = isinstance(functions, Mapping) and all(
    _NUMBER.contains(weight) for weight in functions.values()
  )
  if not is_valid or not functions:
    raise ValueError(
      f'reward_functions of {name!r} must be at least one function and its'
      f' weight, got {functions!r}; set REWARDS, e.g. to'
      ' {"my_rewards:is_right": 1.0}'
    )
  names = [_term_name(function) for function in functions]
  if len(names) > 1 and (len({*names}) < len(names) or REWARD_STD in names):
    raise ValueError(
      'reward functions must have different names in metrics, none of them'
      f' {REWARD_STD!r}, got {", ".join(names)} for {", ".join(functions)};'
      ' rename one'
    )


def _term(
  name: str, function: RewardFn, examples: Examples, responses: Sequence[str]
) -> Float32[np.ndarray, ' N']:
  """Returns the rewards of a function.

  Raises:
    ValueError: It fails, or does not return a finite number for each response.
  """
  try:
    values = function(examples, responses)
  # A function that runs a response may exit with it.
  except (Exception, SystemExit) as e:
    raise ValueError(
      f'the reward function {name} failed with {type(e).__name__}: {e}; it'
      ' takes the objects with the prompts, and the responses'
    ) from e
  try:
    with np.errstate(over='ignore'):
      rewards = np.asarray(values, np.float32)
  except (TypeError, ValueError):
    rewards = np.array(np.nan)
  if rewards.shape != (len(responses),) or not np.isfinite(rewards).all():
    raise ValueError(
      f'the reward function {name} must return {len(responses)} finite numbers,'
      f' one for each response, got {str(values)[:80]}'
    )
  return rewards
