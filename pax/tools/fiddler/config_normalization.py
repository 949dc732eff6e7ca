# SPDX-License-Identifier: Apache-2.0
"""Normalizes configurations before they are shown or written as code."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl
from fiddle import daglish
from fiddle.experimental import auto_config, visualize
from fiddle.experimental import dataclasses as fdl_dataclasses

from pax.inputs.seqio import configs as seqio_configs
from pax.parameterized_experiment import ParameterizedExperiment
from pax.tools.fiddler import sharding
from praxis import pax_fiddle
from praxis.nested_map import NestedMap

Config = pax_fiddle.Config


@dataclasses.dataclass(frozen=True)
class ComponentNormalizer:
  """Returns a simpler Config of a part of an experiment."""

  # Removes fields that are at their defaults.
  remove_defaults: bool
  # Converts dataclass instances to Configs.
  convert_dataclasses: bool
  # Converts NestedMaps to Configs that make them.
  wrap_nested_maps: bool

  def __call__(self, config: Any) -> Any:
    """Returns the normalized Config, or container of Configs."""
    if self.remove_defaults:
      config = visualize.with_defaults_trimmed(
        config, remove_deep_defaults=True
      )
    if self.convert_dataclasses:
      config = fdl_dataclasses.convert_dataclasses_to_configs(
        config, allow_post_init=False
      )
    if self.wrap_nested_maps:
      config = wrap_nested_maps(config)
    return config


@dataclasses.dataclass(frozen=True)
class TaskNormalizer(ComponentNormalizer):
  """Returns a simpler Config of a task."""

  # Removes sharding annotations.
  remove_sharding_annotations: bool
  # Gives each layer its own annotations.
  unshare_sharding_config: bool

  def __call__(self, task_config: Config[Any]) -> Config[Any]:
    config = super().__call__(task_config)
    if self.remove_sharding_annotations:
      return sharding.remove_sharding(config)
    if self.unshare_sharding_config:
      return sharding.unshare_sharding(config)
    return config


@dataclasses.dataclass(frozen=True)
class DatasetNormalizer(ComponentNormalizer):
  """Returns simpler Configs of inputs."""

  # Converts SeqIO tasks and mixtures to Configs that find them by name.
  convert_seqio_task_objects: bool

  def __call__(self, dataset_config: Any) -> Any:
    if self.convert_seqio_task_objects:
      dataset_config = seqio_configs.convert_seqio_tasks(dataset_config)
    return super().__call__(dataset_config)


@dataclasses.dataclass(frozen=True)
class ExperimentNormalizer:
  """Returns a simpler Config of an experiment."""

  task_normalizer: TaskNormalizer
  # Also for the input specs provider.
  dataset_normalizer: DatasetNormalizer
  remove_eval_datasets: bool
  remove_decode_datasets: bool

  def __call__(
    self, experiment_config: Config[ParameterizedExperiment]
  ) -> Config[ParameterizedExperiment]:
    normalized = {}
    for name, value in sharding.named_arguments(experiment_config).items():
      if name == 'eval_datasets' and self.remove_eval_datasets:
        continue
      if name == 'decode_datasets' and self.remove_decode_datasets:
        continue
      is_task = name == 'task'
      normalize = self.task_normalizer if is_task else self.dataset_normalizer
      normalized[name] = normalize(value)
    return Config(fdl.get_callable(experiment_config), **normalized)


@dataclasses.dataclass(frozen=True)
class ConfigNormalizer:
  """Returns a simpler Config of the same experiment.

  The fields are those of the normalizers of its parts.
  """

  remove_defaults: bool = True
  convert_dataclasses: bool = True
  wrap_nested_maps: bool = True
  remove_sharding_annotations: bool = False
  unshare_sharding_config: bool = True
  convert_seqio_task_objects: bool = True
  remove_eval_datasets: bool = False
  remove_decode_datasets: bool = False

  @auto_config.auto_config
  def experiment_normalizer(self) -> ExperimentNormalizer:
    """Returns the normalizer that a call uses."""
    return ExperimentNormalizer(
      task_normalizer=self.task_normalizer(),
      dataset_normalizer=self.dataset_normalizer(),
      remove_eval_datasets=self.remove_eval_datasets,
      remove_decode_datasets=self.remove_decode_datasets,
    )

  @auto_config.auto_config
  def task_normalizer(self) -> TaskNormalizer:
    """Returns the normalizer of the task."""
    return TaskNormalizer(
      remove_defaults=self.remove_defaults,
      convert_dataclasses=self.convert_dataclasses,
      wrap_nested_maps=self.wrap_nested_maps,
      remove_sharding_annotations=self.remove_sharding_annotations,
      unshare_sharding_config=self.unshare_sharding_config,
    )

  @auto_config.auto_config
  def dataset_normalizer(self) -> DatasetNormalizer:
    """Returns the normalizer of the inputs."""
    return DatasetNormalizer(
      remove_defaults=self.remove_defaults,
      convert_dataclasses=self.convert_dataclasses,
      wrap_nested_maps=self.wrap_nested_maps,
      convert_seqio_task_objects=self.convert_seqio_task_objects,
    )

  def lowlevel_config(self) -> fdl.Config[ExperimentNormalizer]:
    """Returns a Config of the normalizer that a call uses."""
    return self.experiment_normalizer.as_buildable()

  def __call__(
    self, config: Config[ParameterizedExperiment]
  ) -> Config[ParameterizedExperiment]:
    """Returns the normalized experiment."""
    return self.experiment_normalizer()(config)


def noop_normalizer() -> ConfigNormalizer:
  """Returns the normalizer that changes least."""
  return ConfigNormalizer(
    remove_defaults=False,
    wrap_nested_maps=False,
    unshare_sharding_config=False,
    convert_seqio_task_objects=False,
  )


def default_normalizer() -> ConfigNormalizer:
  """Returns the normalizer that removes defaults only."""
  return ConfigNormalizer()


def aggressive_normalizer() -> ConfigNormalizer:
  """Returns the normalizer that removes sharding annotations too."""
  return ConfigNormalizer(remove_sharding_annotations=True)


def wrap_nested_maps(config: Any) -> Any:
  """Returns a copy in which NestedMaps are Configs that make them."""

  def wrap(value: Any, state: daglish.State) -> Any:
    if isinstance(value, NestedMap):
      value = Config(make_nested_map, base=dict(value))
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(wrap, config)


def make_nested_map(base: dict[str, Any]) -> NestedMap:
  """Returns a NestedMap of these entries."""
  return NestedMap(base)
