# SPDX-License-Identifier: Apache-2.0
"""The base class of experiments: constants, and configs built from them."""

from __future__ import annotations

import abc
import importlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pax import base_executor, base_task
from pax.tuning import hyper_constants, interfaces
from praxis import base_input, pax_fiddle

InputConfig = pax_fiddle.Config[base_input.BaseInput]
TaskConfig = pax_fiddle.Config[base_task.BaseTask]
InputSpecsProviderConfig = pax_fiddle.Config[base_input.BaseInputSpecsProvider]
_ExperimentT = TypeVar('_ExperimentT', bound='BaseExperiment')
BaseExperimentT = type[_ExperimentT]


class BaseExperiment(abc.ABC):
  """Configs of a task and its inputs.

  Subclasses define constants as upper-case class attributes, so that a variant
  is a subclass with other constants. An experiment builds and runs nothing.
  """

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    hyper_constants.convert_hyper_primitives(cls)

  @abc.abstractmethod
  def datasets(self) -> list[InputConfig]:
    """Returns all inputs; those with `is_training` are training inputs."""

  @abc.abstractmethod
  def task(self) -> pax_fiddle.Config[Any]:
    """Returns the task: model, learner and settings of all modes.

    Raises:
      TypeError: a mixin that changes the task of the next class has none.
    """
    raise TypeError(
      f'{type(self).__name__}: the last class with `super().task()` has no task'
      ' to change; list it before the class that defines the task'
    )

  def train_datasets(self) -> list[InputConfig]:
    """Returns the inputs of training."""
    return [config for config in _input_configs(self) if config.is_training]

  def eval_datasets(self) -> list[InputConfig]:
    """Returns the inputs of evaluation."""
    return [config for config in _input_configs(self) if not config.is_training]

  def decode_datasets(self) -> list[InputConfig]:
    """Returns the inputs of decoding and inference."""
    return self.decoder_datasets()

  def decoder_datasets(self) -> list[InputConfig]:
    """The older name of `decode_datasets`."""
    return []

  def training_dataset(self) -> InputConfig:
    """Returns the only input of training.

    Raises:
      ValueError: there are no training inputs, or several.
    """
    datasets = self.train_datasets()
    if len(datasets) != 1:
      raise ValueError(
        f'{type(self).__name__} needs 1 training dataset, got {len(datasets)}; '
        'set is_training on exactly one config in datasets()'
      )
    return datasets[0]

  def get_input_specs_provider_params(self) -> InputSpecsProviderConfig:
    """Returns the config of the provider of the shapes of a training batch."""
    return pax_fiddle.Config(
      base_input.DatasetInputSpecsProvider, input_p=self.training_dataset()
    )

  def validate(self) -> None:  # noqa: B027 (optional)
    """Raises ValueError if the constants are inconsistent."""

  def search(self) -> interfaces.SearchHParams:
    """Returns the search over the constants that are search points."""
    raise NotImplementedError(f'{type(self).__name__} defines no search()')

  def sub_experiments(self) -> dict[str, type[BaseExperiment]]:
    """Returns the experiments that this one consists of, by id."""
    return {'': type(self)}

  def partitioner(self) -> Any | None:
    """Returns a `pax.partitioning.Partitioner`, not set up; None: the default.

    For example `PjitPartitioner(False, True, self.task(), device_mesh)`.
    """
    return None

  def train_programs(self) -> list[Any]:
    """Returns the train program, not set up.

    Like the programs of the methods below, it is an instance of a program in
    `pax.programs`, or of a subclass.
    """
    return [program_class('train_program.SingleTaskTrainProgram')()]

  def eval_programs(self) -> list[Any]:
    """Returns the eval programs, by default one per eval dataset."""
    make_program = program_class('eval.SingleTaskEvalProgram')
    return [make_program(config) for config in self.eval_datasets()]

  def decode_programs(self) -> list[Any]:
    """Returns the decode programs, by default one per decode dataset."""
    make_program = program_class(self._decode_program())
    return [make_program(config) for config in self.decode_datasets()]

  def _decode_program(self) -> str:
    """Returns the class that decodes a dataset, below `pax.programs`."""
    return 'decode.SingleTaskDecodeProgram'

  def export_files(self) -> Mapping[str, str | pathlib.Path]:
    """Returns the files of an export that are no weights, by name.

    A value is the content of a file, or a file to copy. Training writes them to
    `huggingface` in the job directory, unless that has an imported model.
    """
    return {}

  def executor(self) -> base_executor.BaseExecutor | None:
    """Returns the executor of training; None is the default."""
    return None


def _input_configs(experiment: BaseExperiment) -> list[InputConfig]:
  """Returns the inputs of an experiment.

  Raises:
    ValueError: `datasets()` returns something else than Configs of inputs.
  """
  found: Any = experiment.datasets()
  wrong = found
  if isinstance(found, Iterable) and not isinstance(
    found, pax_fiddle.Buildable
  ):
    inputs = list(found)
    built = [x for x in inputs if isinstance(x, type | base_input.BaseInput)]
    if not built:
      return inputs
    wrong = built[0]
  raise ValueError(
    f'{type(experiment).__name__}.datasets() must return a list of Configs of'
    f' inputs, got {"None" if wrong is None else f"a {type(wrong).__name__}"};'
    ' end it with `return [...]`, and do not instantiate the Configs'
  )


def program_class(name: str) -> Any:
  """Returns the class with this name below `pax.programs`.

  By name, because an experiment does not depend on what runs it; the runner has
  imported `pax.programs`.
  """
  module, _, cls = name.rpartition('.')
  return getattr(importlib.import_module(f'pax.programs.{module}'), cls)
