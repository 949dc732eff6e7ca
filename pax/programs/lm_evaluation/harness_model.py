# SPDX-License-Identifier: Apache-2.0
"""The interface of lm-evaluation-harness to a model; needs `lm_eval`."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import lm_eval.utils
from lm_eval.api import instance
from lm_eval.api import model as model_api
from lm_eval.models import utils as model_utils

from pax.inputs.tokens import chat_templates, tokenizers
from pax.programs.lm_evaluation.token_model import (
  Continuation,
  Score,
  TokenModel,
)

Requests = list[instance.Instance]


class HarnessModel(model_api.TemplateLM):
  """A language model that answers the requests of tasks.

  Texts become tokens as for models of transformers in the harness: prompts have
  the special tokens that the tokenizer adds.

  References:
    https://github.com/EleutherAI/lm-evaluation-harness
  """

  def __init__(
    self,
    model: TokenModel,
    tokenizer: tokenizers.Tokenizer,
    chat_template: chat_templates.ChatTemplate | None = None,
  ):
    """Takes the model, the tokenizer of its ids, and the form of chats."""
    super().__init__()
    self._model = model
    self._tokenizer = tokenizer
    self._chat_template = chat_template

  @property
  def eot_token_id(self) -> int:
    """Id of the end of a text."""
    return self._tokenizer.eos_id

  @property
  def prefix_token_id(self) -> int:
    """Id before a text without a context."""
    return self._tokenizer.bos_id

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
  ) -> list[int]:
    """Returns the ids of a text.

    Args:
      string: The text.
      add_special_tokens: None is True, unless a chat template has written
        bos.
      **kwargs: Not used.
    """
    if add_special_tokens is None and self._bos_token:
      add_special_tokens = not string.startswith(self._bos_token)
    if add_special_tokens is False:
      ids = self._tokenizer.encode(string.encode())
    else:
      ids = self._tokenizer.encode_prompt(string.encode())
    return [int(i) for i in ids]

  @property
  def tokenizer_name(self) -> str:
    """Folder of the chat template, which names requests of the harness."""
    return self._chat_template.folder if self._chat_template else ''

  def apply_chat_template(
    self,
    chat_history: list[dict[str, str]],
    add_generation_prompt: bool = True,
  ) -> str:
    """Returns the text of a conversation as a prompt.

    Args:
      chat_history: The messages.
      add_generation_prompt: Whether the model answers the last message, or
        continues it.

    Raises:
      ValueError: There is no chat template.
    """
    if self._chat_template is None:
      raise ValueError(
        'conversations need a chat template, got none; set'
        ' LM_EVAL_APPLY_CHAT_TEMPLATE=True'
      )
    if add_generation_prompt:
      return self._chat_template.prompt(chat_history)
    return self._chat_template.continuation_prompt(chat_history)

  def loglikelihood_rolling(
    self, requests: Requests, disable_tqdm: bool = False
  ) -> list[float]:
    """Returns the log-probability of each text, in nats.

    Each token of a longer text than a row is predicted once, in windows.

    Args:
      requests: Their `args` are (text,).
      disable_tqdm: Not used.
    """
    windows = []
    for index, request in enumerate(requests):
      for window in lm_eval.utils.get_rolling_token_windows(
        token_list=self.tok_encode(request.args[0]),
        prefix_token=self.prefix_token_id,
        max_seq_len=self._model.max_length,
        context_len=1,
      ):
        windows.append((index, lm_eval.utils.make_disjoint_window(window)))
    scores = self._model.score([Continuation(*ids) for _, ids in windows])
    totals = [0.0] * len(requests)
    for (index, _), score in zip(windows, scores, strict=True):
      totals[index] += score.log_prob
    return totals

  def generate_until(
    self, requests: Requests, disable_tqdm: bool = False
  ) -> list[str]:
    """Returns the greedy continuation of each prompt before a stop sequence.

    Args:
      requests: Their `args` are (prompt, settings of generation).
      disable_tqdm: Not used.

    Raises:
      ValueError: A task samples.
    """
    settings = [
      model_utils.normalize_gen_kwargs(request.args[1]) for request in requests
    ]
    by_length = collections.defaultdict(list)
    for index, each in enumerate(settings):
      if each.get('do_sample'):
        raise ValueError(
          f'the task {requests[index].task_name!r} must generate greedily, got'
          ' do_sample: true in generation_kwargs; set it to false'
        )
      by_length[each['max_gen_toks']].append(index)
    texts = {}
    for max_tokens, indices in by_length.items():
      prompts = [self.tok_encode(requests[i].args[0]) for i in indices]
      generated = self._model.generate(prompts, max_tokens)
      for index, text in zip(indices, generated, strict=True):
        texts[index] = _before(text, settings[index]['until'])
    return [texts[index] for index in range(len(requests))]

  @property
  def _bos_token(self) -> str | None:
    return self._chat_template.bos_token if self._chat_template else None

  def _loglikelihood_tokens(
    self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
  ) -> list[tuple[float, bool]]:
    scores: list[Score] = self._model.score(
      [Continuation(context, ids) for _, context, ids in requests]
    )
    return [(score.log_prob, score.is_greedy) for score in scores]


def _before(text: str, stops: Sequence[str]) -> str:
  """Returns the part of a text before the first of some sequences."""
  for stop in filter(None, stops):
    text, _, _ = text.partition(stop)
  return text
