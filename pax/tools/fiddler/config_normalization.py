# SPDX-License-Identifier: Apache-2.0
"""Normalizes configurations before they are shown or written as code."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl
from fiddle import daglish
from fiddle.experimental import dataclasses as fdl_dataclasses
from fiddle.experimental import visualize

from pax.inputs import seqio_tasks
from pax.parameterized_experiment import ParameterizedExperiment
from pax.tools.fiddler import sharding
from praxis import pax_fiddle
from praxis.nested_map import NestedMap

Config = pax_fiddle.Config


@dataclasses.dataclass(frozen=True)
class ConfigNormalizer:
  """Returns a simpler Config of the same experiment, or of a part of it."""

  # Removes fields that are at their defaults.
  remove_defaults: bool = True
  # Converts dataclass instances to Configs.
  convert_dataclasses: bool = True
  # Converts NestedMaps to Configs that make them.
  wrap_nested_maps: bool = True
  # Removes sharding annotations from the task.
  remove_sharding_annotations: bool = False
  # Gives each layer of the task its own annotations.
  unshare_sharding_config: bool = True
  # Converts SeqIO tasks and mixtures to Configs that find them by name.
  convert_seqio_task_objects: bool = True
  # Removes the eval datasets.
  remove_eval_datasets: bool = False
  # Removes the decode datasets.
  remove_decode_datasets: bool = False

  def __call__(
    self, config: Config[ParameterizedExperiment]
  ) -> Config[ParameterizedExperiment]:
    """Returns the normalized experiment."""
    normalized = {}
    for name, value in fdl.ordered_arguments(config).items():
      if name == 'eval_datasets' and self.remove_eval_datasets:
        continue
      if name == 'decode_datasets' and self.remove_decode_datasets:
        continue
      normalize = self.task if name == 'task' else self.component
      normalized[name] = normalize(value)
    return Config(fdl.get_callable(config), **normalized)

  def task(self, config: Config[Any]) -> Config[Any]:
    """Returns the normalized task."""
    config = self.component(config)
    if self.remove_sharding_annotations:
      return sharding.remove_sharding(config)
    if self.unshare_sharding_config:
      return sharding.unshare_sharding(config)
    return config

  def component(self, config: Any) -> Any:
    """Returns any other Config, or container of Configs, normalized."""
    if self.convert_seqio_task_objects:
      config = convert_seqio_tasks(config)
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


def convert_seqio_tasks(config: Any) -> Any:
  """Returns a copy in which SeqIO tasks are Configs that find them by name."""

  def convert(value: Any, state: daglish.State) -> Any:
    if is_seqio_task(value):
      return Config(find_seqio_task, name=value.name)
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(convert, config)


def find_seqio_task(name: str) -> Any:
  """Returns the SeqIO task or mixture called `name`; needs SeqIO."""
  return seqio_tasks.find(seqio_tasks.load(f'the task {name!r}'), name)


def is_seqio_task(value: Any) -> bool:
  """Whether a value is a SeqIO task or mixture; does not import SeqIO."""
  return any(
    cls.__module__.partition('.')[0] == 'seqio'
    and cls.__name__ in ('Task', 'Mixture')
    for cls in type(value).__mro__
  )


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
