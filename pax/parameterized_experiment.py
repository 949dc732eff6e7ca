# SPDX-License-Identifier: Apache-2.0
"""An experiment defined by Configs instead of constants."""

from __future__ import annotations

from collections.abc import Sequence

from pax import base_experiment

InputConfig = base_experiment.InputConfig
TaskConfig = base_experiment.TaskConfig
InputSpecsProviderConfig = base_experiment.InputSpecsProviderConfig


class ParameterizedExperiment(base_experiment.BaseExperiment):
  """Returns the Configs it was constructed with; may itself be a Config.

  `--fdl` reads such experiments, and `pax codegen` writes them.
  """

  def __init__(
    self,
    *,
    task: TaskConfig,
    train_datasets: Sequence[InputConfig] = (),
    eval_datasets: Sequence[InputConfig] = (),
    decode_datasets: Sequence[InputConfig] = (),
    input_specs_provider: InputSpecsProviderConfig | None = None,
    training_dataset: InputConfig | None = None,
    decoder_datasets: Sequence[InputConfig] = (),
  ):
    """Stores the Configs.

    Args:
      task: Model, learner and settings of all modes.
      train_datasets: Inputs of training.
      eval_datasets: Inputs of evaluation.
      decode_datasets: Inputs of decoding and inference.
      input_specs_provider: Provider of the shapes of a training batch; None
        takes the shapes of the training dataset.
      training_dataset: Older name of `train_datasets`, for one dataset.
      decoder_datasets: Older name of `decode_datasets`.

    Raises:
      ValueError: `is_training` of a dataset contradicts its use.
    """
    self._task = task
    self._train_datasets = list(train_datasets)
    if training_dataset is not None:
      self._train_datasets.append(training_dataset)
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

  def get_input_specs_provider_params(self) -> InputSpecsProviderConfig:
    return (
      self._input_specs_provider or super().get_input_specs_provider_params()
    )


def _check(
  use: str, datasets: Sequence[InputConfig], *, is_training: bool
) -> None:
  for dataset in datasets:
    if dataset.is_training != is_training:
      raise ValueError(
        f'is_training of the {use} dataset {dataset.name!r} must be'
        f' {is_training}, got {dataset.is_training}; set it in its config'
      )
