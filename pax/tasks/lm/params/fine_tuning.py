# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of decoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax import tasks_lib
from pax.huggingface import stacked_variables
from pax.inputs import batch_specs
from pax.inputs.text import prompts
from pax.inputs.tokens import tokenizers
from pax.tasks.lm import distillation, lm_data
from pax.tasks.lm.params import huggingface_model, objectives
from praxis import base_input, pax_fiddle
from praxis.decoding import hparams as decoding

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]


class HuggingFaceLm(objectives.ObjectiveConstants):
  """A decoder, trained on text files or on responses to prompts."""

  # Folder of a teacher with the same vocabulary: the model learns texts and
  # responses from its distributions, too (arXiv:1503.02531). Weight of these
  # in the loss, from 0 to 1, and the temperature at which they are compared.
  TEACHER_DIR: str | None = None
  DISTILLATION_WEIGHT = 0.5
  DISTILLATION_TEMPERATURE = 1.0
  # Whether layers are a scan over stacked weights.
  USE_REPEATED_LAYER = False
  # File of prompts for --mode=decode, decode_once and infer, which replaces
  # PROMPTS: a prompt per line, or for *.jsonl objects with `prompt` or
  # `messages`.
  PROMPTS_FILE: str | None = None

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: OBJECTIVE is unknown or does not fit other constants, the
        teacher does not fit, or see
        `huggingface_model.HuggingFaceModel.validate`.
    """
    # PythonSource checks the vocabulary of a tokenizer that it trains.
    huggingface_model.HuggingFaceModel.validate(self)
    huggingface_model.check_objective(
      self.OBJECTIVE, list(objectives.OBJECTIVES)
    )
    self._check_teacher()
    self._objective().check()

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.lm_tpl.packed_input = True
    if self.TEACHER_DIR is not None:
      distillation.add_teacher(
        task_p,
        self.TEACHER_DIR,
        weight=self.DISTILLATION_WEIGHT,
        temperature=self.DISTILLATION_TEMPERATURE,
        repeats_layers=self.USE_REPEATED_LAYER,
      )
    if self.USE_REPEATED_LAYER:
      stacked_variables.repeat_layers(
        task_p.model, checkpoint_policy=self.CHECKPOINT_POLICY
      )
    else:
      self._rematerialize(task_p.model.lm_tpl.stacked_transformer_tpl)
    self._add_low_rank_updates(task_p)
    self._shard(task_p)
    self._objective().set_model(task_p)
    return task_p

  def train_programs(self) -> list[Any]:
    return self._objective().train_programs() or super().train_programs()

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    return self._objective().evaluated(super().datasets())

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    objective = self._objective()
    if not objective.can_decode():
      return []
    if self.PROMPTS_FILE is None:
      if not objective.decodes_held_out():
        return super().decode_datasets()
      return [
        self._input(
          'held_out', self.DECODE_BATCH_SIZE, held_out=True, reset_for_eval=True
        )
      ]
    return [
      Config(
        prompts.PromptFileInput,
        name='prompts',
        file=self.PROMPTS_FILE,
        files=self.TRAIN_FILES,
        tokenizer=self._tokenizer(),
        batch_size=batch_specs.rows_per_host(self.DECODE_BATCH_SIZE),
        chat_template=self._chat_template(),
        seq_len=self.DECODE_SEQ_LEN // 2,
        reset_for_eval=True,
      )
    ]

  def _decode_program(self) -> str:
    return self._objective().decode_program() or super()._decode_program()

  def _input(
    self, name: str, batch_size: int, **kwargs: Any
  ) -> Config[base_input.BaseInput]:
    input_p = self._objective().conversation_input()
    if input_p is None:
      return super()._input(name, batch_size, **kwargs)
    # The prompts of samples are those of PROMPTS_FILE.
    kwargs.pop('sample_prompt', None)
    return input_p.set(
      name=name,
      files=self.TRAIN_FILES,
      tokenizer=self._tokenizer(),
      chat_template=self._chat_template(),
      prompt_field=self.PROMPT_FIELD,
      batch_size=batch_specs.rows_per_host(batch_size),
      seq_len=self.MAX_SEQ_LEN,
      held_out_percent=self.HELD_OUT_PERCENT,
      **kwargs,
    )

  def _data_input(
    self, own: lm_data.InputConfig, data: str | Mapping[str, float]
  ) -> lm_data.InputConfig:
    input_p = super()._data_input(own, data)
    return input_p.set(vocab_size=self.model_config()['vocab_size'])

  def _check_teacher(self) -> None:
    if self.TEACHER_DIR is None:
      return
    teacher = distillation.Teacher(folder=self.TEACHER_DIR)
    teacher.check_objective(self.OBJECTIVE)
    teacher.check_student(
      self.model_config(),
      self._tokenizer().Instantiate(),
      huggingface_model.tokenizer_of(self.TEACHER_DIR).Instantiate(),
      self.MAX_SEQ_LEN,
    )

  def _objective(self) -> objectives.Objective:
    return objectives.OBJECTIVES[self.OBJECTIVE](self)

  def _has_reference(self) -> bool:
    return self._objective().has_reference()

  def _decoder(self) -> Config[decoding.DecoderHParams]:
    return Config(
      decoding.GreedyDecoderHParams,
      fprop_for_prefix=True,
      seqlen=self.DECODE_SEQ_LEN,
      max_decode_steps=self._objective().max_response_len(),
      eos_id=self.eos_ids(),
    )

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    named = lm_data.LanguageModelData._tokenizer(self)
    if named is not None:
      return named
    return huggingface_model.HuggingFaceModel._tokenizer(self)
