# SPDX-License-Identifier: Apache-2.0
"""Makes Configs simpler before people look at them."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl
from fiddle.experimental import dataclasses as fdl_dataclasses
from fiddle.experimental import visualize

from pax.parameterized_experiment import ParameterizedExperiment
from pax.tools.fiddler import (
  convert_seqio_task_objects,
  remove_sharding,
  unshare_sharding,
  wrap_nested_maps,
)
from praxis import pax_fiddle

Config = pax_fiddle.Config


@dataclasses.dataclass(frozen=True)
class ConfigNormalizer:
  """Returns a simpler Config of the same experiment, or of part of one."""

  # Whether fields at their defaults are left out.
  remove_defaults: bool = True
  # Whether dataclass instances become Configs.
  convert_dataclasses: bool = True
  # Whether NestedMaps become Configs that make them.
  wrap_nested_maps: bool = True
  # Whether a task says nothing of how arrays are split.
  remove_sharding_annotations: bool = False
  # Whether layers of a task share no sharding.
  unshare_sharding_config: bool = True
  # Whether SeqIO's tasks become Configs that find them by name.
  convert_seqio_task_objects: bool = True
  # Whether these datasets are left out.
  remove_eval_datasets: bool = False
  remove_decode_datasets: bool = False

  def __call__(
    self, config: Config[ParameterizedExperiment]
  ) -> Config[ParameterizedExperiment]:
    """The experiment, each of its parts made simpler."""
    found = {}
    for name, value in fdl.ordered_arguments(config).items():
      if name == 'eval_datasets' and self.remove_eval_datasets:
        continue
      if name == 'decode_datasets' and self.remove_decode_datasets:
        continue
      simpler = self.task if name == 'task' else self.component
      found[name] = simpler(value)
    return Config(fdl.get_callable(config), **found)

  def task(self, config: Config[Any]) -> Config[Any]:
    """A task made simpler."""
    config = self.component(config)
    if self.remove_sharding_annotations:
      return remove_sharding.remove_sharding(config)
    if self.unshare_sharding_config:
      return unshare_sharding.unshare_sharding(config)
    return config

  def component(self, config: Any) -> Any:
    """Any Config, or a container of them, made simpler."""
    if self.convert_seqio_task_objects:
      config = convert_seqio_task_objects.convert_seqio_tasks(config)
    if self.remove_defaults:
      config = visualize.with_defaults_trimmed(
        config, remove_deep_defaults=True
      )
    if self.convert_dataclasses:
      config = fdl_dataclasses.convert_dataclasses_to_configs(
        config, allow_post_init=False
      )
    if self.wrap_nested_maps:
      config = wrap_nested_maps.wrap_nested_maps(config)
    return config


def noop_normalizer() -> ConfigNormalizer:
  """Changes as little as there is to change."""
  return ConfigNormalizer(
    remove_defaults=False,
    wrap_nested_maps=False,
    unshare_sharding_config=False,
    convert_seqio_task_objects=False,
  )


def default_normalizer() -> ConfigNormalizer:
  """Keeps all that is not a default."""
  return ConfigNormalizer()


def aggressive_normalizer() -> ConfigNormalizer:
  """Leaves out sharding too."""
  return ConfigNormalizer(remove_sharding_annotations=True)
