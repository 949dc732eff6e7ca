# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that language models take by --set LM_EVAL_TASKS=..."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from pax import base_experiment
from pax.inputs import batch_specs
from pax.inputs.text import packed_text
from pax.inputs.tokens import chat_templates, tokenizers
from praxis import pax_fiddle

Config = pax_fiddle.Config


class LanguageModelBenchmarks(base_experiment.BaseExperiment):
  """Evaluates tasks of lm-evaluation-harness when the experiment decodes.

  --mode=decode_once --set "LM_EVAL_TASKS=['hellaswag', 'arc_easy']"

  References:
    https://github.com/EleutherAI/lm-evaluation-harness
  """

  # Names of tasks, groups or tags; empty evaluates none.
  LM_EVAL_TASKS: Sequence[str] = ()
  # Number of solved examples in a prompt; None is that of each task.
  LM_EVAL_NUM_FEWSHOT: int | None = None
  # Number of examples of each task, or below 1 their fraction; None is all.
  LM_EVAL_LIMIT: float | None = None
  # Folder with tasks of the user, *.yaml.
  LM_EVAL_INCLUDE_PATH: str | None = None
  # Whether the chat template of the model turns prompts into conversations.
  LM_EVAL_APPLY_CHAT_TEMPLATE = False
  # Global batch size, and tokens per row; None is MAX_SEQ_LEN.
  LM_EVAL_BATCH_SIZE = 32
  LM_EVAL_SEQ_LEN: int | None = None

  # Positions per row; set by the experiment.
  MAX_SEQ_LEN: int

  def decode_programs(self) -> list[Any]:
    """Returns a program per decode dataset, and that of LM_EVAL_TASKS.

    Raises:
      ValueError: The experiment has no tokenizer, or lm_eval is not installed.
    """
    programs = super().decode_programs()
    if not self.LM_EVAL_TASKS:
      return programs
    tokenizer_p = self._tokenizer()
    if tokenizer_p is None:
      raise ValueError(
        'LM_EVAL_TASKS needs a tokenizer, got TOKENIZER=None; set TOKENIZER to'
        ' a *.model, a tokenizer.json, or bytes'
      )
    settings = base_experiment.program_class(
      'lm_evaluation.program.LmEvalSettings'
    )(
      tasks=self.LM_EVAL_TASKS,
      num_fewshot=self.LM_EVAL_NUM_FEWSHOT,
      limit=self.LM_EVAL_LIMIT,
      include_path=self.LM_EVAL_INCLUDE_PATH,
      chat_template=self._benchmark_chat_template(),
    )
    make_program = base_experiment.program_class(
      'lm_evaluation.program.LmEvalProgram'
    )
    return [
      *programs,
      make_program(self._benchmark_input(tokenizer_p), settings),
    ]

  def _benchmark_chat_template(
    self,
  ) -> Config[chat_templates.ChatTemplate] | None:
    if not self.LM_EVAL_APPLY_CHAT_TEMPLATE:
      return None
    if (chat_template_p := self._chat_template()) is None:
      raise ValueError(
        'LM_EVAL_APPLY_CHAT_TEMPLATE needs a chat template, got none; set'
        ' MODEL_DIR of an experiment of tasks.lm.params.huggingface'
      )
    return chat_template_p

  def _chat_template(self) -> Config[chat_templates.ChatTemplate] | None:
    """Returns the chat template of the model; None without one."""
    return None

  @abc.abstractmethod
  def _tokenizer(self) -> Config[tokenizers.Tokenizer] | None:
    """Returns the tokenizer of the model; None if it is unknown."""

  def _benchmark_input(
    self, tokenizer_p: Config[tokenizers.Tokenizer]
  ) -> Config[packed_text.TextLmInput]:
    """Returns the tokenizer and the shape of the rows, as an input."""
    return Config(
      packed_text.TextLmInput,
      name='lm_eval',
      tokenizer=tokenizer_p,
      batch_size=batch_specs.rows_per_host(self.LM_EVAL_BATCH_SIZE),
      seq_len=self.LM_EVAL_SEQ_LEN or self.MAX_SEQ_LEN,
    )
