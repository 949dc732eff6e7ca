# SPDX-License-Identifier: Apache-2.0
"""An experiment made of Configs, where others are made of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pax import base_experiment

InputConfig = base_experiment.InputConfig
TaskConfig = base_experiment.TaskConfig


class ParameterizedExperiment(base_experiment.BaseExperiment):
  """What it is given is what it returns; itself it can be a Config.

  That is what `--fdl` reads, and what `pax codegen` writes.
  """

  def __init__(
    self,
    *,
    task: TaskConfig,
    train_datasets: Sequence[InputConfig] = (),
    eval_datasets: Sequence[InputConfig] = (),
    decode_datasets: Sequence[InputConfig] = (),
    input_specs_provider: TaskConfig | None = None,
    training_dataset: InputConfig | None = None,
    decoder_datasets: Sequence[InputConfig] = (),
  ):
    """Keeps the Configs.

    Args:
      task: model, learner and how they are trained.
      train_datasets: what to train on.
      eval_datasets: what to evaluate on.
      decode_datasets: what to decode.
      input_specs_provider: tells the shapes of a training batch; None asks the
        training dataset.
      training_dataset: one more of `train_datasets`, by its older name.
      decoder_datasets: more of `decode_datasets`, by their older name.

    Raises:
      ValueError: `is_training` of a dataset is not what its use wants.
    """
    one_more = [] if training_dataset is None else [training_dataset]
    self._task = task
    self._train_datasets = [*train_datasets, *one_more]
    self._eval_datasets = list(eval_datasets)
    self._decode_datasets = [*decode_datasets, *decoder_datasets]
    self._input_specs_provider = input_specs_provider
    _check('training', self._train_datasets, is_training=True)
    _check('eval', self._eval_datasets, is_training=False)
    _check('decode', self._decode_datasets, is_training=False)

  def task(self) -> TaskConfig:
    return self._task

  def datasets(self) -> list[InputConfig]:
    return self._train_datasets + self._eval_datasets

  def train_datasets(self) -> list[InputConfig]:
    return self._train_datasets

  def eval_datasets(self) -> list[InputConfig]:
    return self._eval_datasets

  def decode_datasets(self) -> list[InputConfig]:
    return self._decode_datasets

  def get_input_specs_provider_params(self) -> TaskConfig:
    return (
      self._input_specs_provider or super().get_input_specs_provider_params()
    )


def _check(use: str, datasets: Sequence[Any], *, is_training: bool) -> None:
  for dataset in datasets:
    if dataset.is_training != is_training:
      raise ValueError(
        f'is_training of the {use} dataset {dataset.name!r} must be'
        f' {is_training}, got {dataset.is_training}; set it in its config'
      )
