# SPDX-License-Identifier: Apache-2.0
"""Takes what only says how arrays are split out of a Config."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
from fiddle import daglish

from praxis import base_layer, pax_fiddle

BASE_LAYER_SHARDING_FIELDS = {
  'weight_split_dims_mapping',
  'activation_split_dims_mapping',
}
SHARDING_TYPES = (
  base_layer.BaseLayer.WeightSharding,
  base_layer.BaseLayer.ActivationSharding,
)


def remove_sharding(config: Any, replace_with_default: bool = False) -> Any:
  """Returns a copy of Configs, or of a container of them, without sharding.

  Args:
    config: what is copied.
    replace_with_default: sets the fields to their defaults, where otherwise
      they are not set at all.
  """

  def without(value: Any, state: daglish.State) -> Any:
    if not state.is_traversable(value):
      return value
    value = state.map_children(value)
    if isinstance(value, fdl.Buildable):
      for name, child in fdl.ordered_arguments(value).items():
        if is_sharding(child, name):
          delattr(value, name)
          if replace_with_default:
            default = pax_fiddle.Config(fdl.get_callable(value))
            setattr(value, name, getattr(default, name))
    return value

  return daglish.MemoizedTraversal.run(without, config)


def is_sharding(value: Any, name: str | int | None = None) -> bool:
  """Whether a value, or the field it is in, says how arrays are split."""
  if name in BASE_LAYER_SHARDING_FIELDS:
    return True
  if not isinstance(value, fdl.Buildable):
    return False
  made = fdl.get_callable(value)
  return isinstance(made, type) and issubclass(made, SHARDING_TYPES)
