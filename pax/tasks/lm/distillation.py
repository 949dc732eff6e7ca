# SPDX-License-Identifier: Apache-2.0
"""Language models that learn from a teacher in a folder of Hugging Face."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import fiddle as fdl
import numpy as np

from pax import tasks_lib
from pax.checkpoints import paths, policy_networks
from pax.huggingface import (
  families,
  model_folder,
  multimodal,
  stacked_variables,
)
from pax.inputs.tokens import tokenizers
from praxis import base_layer, pax_fiddle
from praxis.layers import models

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]

# Objectives whose loss is that of the tokens of a text.
_OBJECTIVES = ('text', 'responses')
# Different vocabularies have different ids for it.
_PROBE = 'Teacher 1 and student 23:\n\tdef learn(x): return x  # naïve 学'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
  """A model that a student learns from."""

  # The folder, for messages the value of TEACHER_DIR.
  folder: str

  @functools.cached_property
  def config(self) -> dict[str, Any]:
    """The contents of config.json, those of the language model.

    Raises:
      ValueError: The folder has none.
    """
    folder = pathlib.Path(self.folder)
    if (folder / paths.CHECKPOINTS).exists():
      raise ValueError(
        f'TEACHER_DIR={folder} must be a folder of Hugging Face, got the'
        f' directory of a job; run pax convert pax-to-hf {folder} FOLDER, and'
        ' set TEACHER_DIR=FOLDER'
      )
    try:
      config = model_folder.read_config(folder)
      return dict(multimodal.language_config(config))
    except ValueError as e:
      raise ValueError(f'TEACHER_DIR={folder} has no teacher: {e}') from e

  def model(self) -> LayerTpl:
    """Returns the teacher as a model.

    Raises:
      ValueError: The folder has no model, or one that is no decoder.
    """
    model_p = families.read_model(self.config).model()
    if model_p.cls is not models.LanguageModel:
      raise ValueError(
        f'TEACHER_DIR={self.folder} must have a decoder, got a'
        f' {self.config["model_type"]}; use a teacher of another family'
      )
    return model_p

  def check_objective(self, objective: str) -> None:
    """Checks what the student learns.

    Raises:
      ValueError: A teacher has no part in it.
    """
    if objective not in _OBJECTIVES:
      raise ValueError(
        f'TEACHER_DIR needs one of the objectives {list(_OBJECTIVES)}, got'
        f' OBJECTIVE={objective}; leave out TEACHER_DIR'
      )

  def check_student(
    self,
    config: dict[str, Any],
    tokenizer: tokenizers.Tokenizer,
    own_tokenizer: tokenizers.Tokenizer,
    seq_len: int,
  ) -> None:
    """Checks that the student has the vocabulary of the teacher.

    Args:
      config: The config.json of the student.
      tokenizer: That of the student.
      own_tokenizer: That of the teacher.
      seq_len: Length of the texts.

    Raises:
      ValueError: It has another one, or texts are too long for the teacher.
    """
    self._check_equal(
      'a vocab_size in config.json',
      self.model().lm_tpl.vocab_size,
      config['vocab_size'],
    )
    self._check_equal(
      'a number of ids of the tokenizer',
      own_tokenizer.vocab_size,
      tokenizer.vocab_size,
    )
    own_ids, ids = (
      np.asarray(x.encode(_PROBE.encode())).tolist()
      for x in (own_tokenizer, tokenizer)
    )
    self._check_equal(f'ids of {_PROBE!r}', own_ids, ids)
    length = self.config.get('n_positions', seq_len)
    if seq_len > length:
      raise ValueError(
        f'MAX_SEQ_LEN must be at most {length}, the n_positions of'
        f' TEACHER_DIR={self.folder}, got {seq_len}; the teacher has no'
        ' embedding of later positions'
      )

  def _check_equal(self, name: str, own: Any, of_student: Any) -> None:
    if own != of_student:
      raise ValueError(
        f'TEACHER_DIR={self.folder} must have {name} equal to that of the'
        f' student, {of_student}, got {own}; use a teacher with the vocabulary'
        ' and the tokenizer files of the student'
      )


def add_teacher(
  task_p: Config[tasks_lib.SingleTask],
  folder: str,
  *,
  weight: float,
  temperature: float,
  repeats_layers: bool,
) -> None:
  """Lets the model of a task learn from a teacher, too.

  The variables of the teacher begin with the weights of the folder, do not
  learn, and have the dtype of the computation.

  Args:
    task_p: Has a LanguageModel, before its sharding.
    folder: That of the teacher.
    weight: That of the teacher in the loss, from 0 to 1.
    temperature: Of the distributions that are compared.
    repeats_layers: Whether the layers of the teacher are a scan.
  """
  teacher_p = Teacher(folder=folder).model()
  if repeats_layers:
    stacked_variables.repeat_layers(teacher_p)
  model_p = task_p.model
  fdl.update_callable(model_p, models.LanguageModelDistillation)
  model_p.set(
    teacher_lm_tpl=teacher_p.lm_tpl.set(dtype=model_p.fprop_dtype),
    distillation_weight=weight,
    temperature=temperature,
  )
  task_p.train.init_networks = {policy_networks.TEACHER: folder}
  task_p.train.learner.bprop_variable_exclusion = [
    policy_networks.FROZEN_VARIABLES
  ]
  task_p.train.save_frozen_variables_once = True
