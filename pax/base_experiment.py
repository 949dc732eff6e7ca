# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: constants, and the configs made from them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from pax import base_executor
from pax.tuning import interfaces
from praxis import base_input, pax_fiddle

InputConfig = pax_fiddle.Config[base_input.BaseInput]
TaskConfig = pax_fiddle.Config[Any]


class BaseExperiment(abc.ABC):
  """A task and the data for it, as configs.

  Subclasses hold their numbers in upper-case class attributes, so that a
  variant is a subclass with other numbers. Nothing is built or run here.
  """

  @abc.abstractmethod
  def datasets(self) -> list[InputConfig]:
    """Returns all inputs; those with `is_training` set are trained on."""

  @abc.abstractmethod
  def task(self) -> TaskConfig:
    """Returns the task: model, learner and how they are trained."""

  def train_datasets(self) -> list[InputConfig]:
    """Returns the inputs to train on."""
    return [config for config in self.datasets() if config.is_training]

  def eval_datasets(self) -> list[InputConfig]:
    """Returns the inputs to evaluate on."""
    return [config for config in self.datasets() if not config.is_training]

  def decode_datasets(self) -> list[InputConfig]:
    """Returns the inputs to decode."""
    return self.decoder_datasets()

  def decoder_datasets(self) -> list[InputConfig]:
    """The older name of `decode_datasets`."""
    return []

  def training_dataset(self) -> InputConfig:
    """Returns the one input to train on.

    Raises:
      ValueError: there is none, or more than one.
    """
    found = self.train_datasets()
    if len(found) != 1:
      raise ValueError(
        f'{type(self).__name__} wants 1 training dataset, got {len(found)}; '
        'set is_training on exactly one config in datasets()'
      )
    return found[0]

  def get_input_specs_provider_params(self) -> TaskConfig:
    """Returns the config of what tells the shapes of a training batch."""
    return pax_fiddle.Config(
      base_input.DatasetInputSpecsProvider, input_p=self.training_dataset()
    )

  def validate(self) -> None:  # noqa: B027 (most have nothing to check)
    """Raises ValueError when the constants do not fit together."""

  def search(self) -> interfaces.SearchHParams:
    """Returns how to search over the constants that are search points."""
    raise NotImplementedError(f'{type(self).__name__} defines no search()')

  @classmethod
  def sub_experiments(cls) -> dict[str, type[BaseExperiment]]:
    """Returns the experiments that make up this one, by id."""
    return {'': cls}

  def partitioner(self) -> Callable[..., Any] | None:
    """Returns what makes the partitioner, or None for the usual one.

    It is called as `create_partitioner(task config, specs of a batch)`.
    """
    return None

  def train_programs(self) -> list[Any]:
    """Returns the train program, not set up; none means the usual one.

    Like the programs of the methods below, it is an instance of a subclass of
    a program in `pax.programs`.
    """
    return []

  def eval_programs(self) -> list[Any]:
    """Returns the eval programs; none means one per eval dataset."""
    return []

  def decode_programs(self) -> list[Any]:
    """Returns the decode programs; none means one per decode dataset."""
    return []

  def executor(self) -> base_executor.BaseExecutor | None:
    """Returns what runs the programs of training, or None for the usual."""
    return None
