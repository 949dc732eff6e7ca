# SPDX-License-Identifier: Apache-2.0
"""Sharding annotations of a configuration: found, removed, unshared."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
from fiddle import daglish

from praxis import base_layer, pax_fiddle

Config = pax_fiddle.Config

BASE_LAYER_SHARDING_FIELDS = {
  'weight_split_dims_mapping',
  'activation_split_dims_mapping',
}
SHARDING_TYPES = (
  base_layer.WeightSharding,
  base_layer.ActivationSharding,
)

_LITERALS = (int, str, type(None))


def is_sharding(value: Any, name: str | int | None = None) -> bool:
  """Whether a value, or the field `name` that holds it, is an annotation."""
  if name in BASE_LAYER_SHARDING_FIELDS:
    return True
  if not isinstance(value, fdl.Buildable):
    return False
  cls = fdl.get_callable(value)
  return isinstance(cls, type) and issubclass(cls, SHARDING_TYPES)


def named_arguments(config: fdl.Buildable) -> dict[str, Any]:
  """Returns the arguments of a Config, without those of `*args`."""
  return {
    name: value
    for name, value in fdl.ordered_arguments(config).items()
    if isinstance(name, str)
  }


def remove_sharding(config: Any, replace_with_default: bool = False) -> Any:
  """Returns a copy of a Config, or of a container of them, without sharding.

  Args:
    config: what to copy.
    replace_with_default: sets the fields to their defaults; otherwise they
      are unset.
  """

  def remove(value: Any, state: daglish.State) -> Any:
    if not state.is_traversable(value):
      return value
    value = state.map_children(value)
    if isinstance(value, fdl.Buildable):
      for name, child in named_arguments(value).items():
        if is_sharding(child, name):
          delattr(value, name)
          if replace_with_default:
            default = pax_fiddle.Config(fdl.get_callable(value))
            setattr(value, name, getattr(default, name))
    return value

  return daglish.MemoizedTraversal.run(remove, config)


def unshare_sharding(config: Any) -> Any:
  """Returns a copy in which no two fields share an annotation object.

  Only the values of an annotation matter, and generated code reads better
  without a variable for each shared object.
  """
  return UnsharingTraversal.run(_copy, config)


def sharding_annotations(config: Config[Any]) -> list[tuple[str, Any]]:
  """Returns the (path, value) pairs of all sharding annotations.

  Raises:
    ValueError: an annotation does not consist of mesh axes, or its class is
      not the one that its owner declares.
  """
  pairs: list[tuple[str, Any]] = []
  for value, path in daglish.iterate(config):
    if isinstance(value, fdl.Buildable):
      for name, child in named_arguments(value).items():
        if is_sharding(child, name):
          child_path = f'{daglish.path_str(path)}.{name}'
          pairs += _annotations(
            child_path, fdl.get_callable(value), name, child
          )
  return pairs


class UnsharingTraversal(daglish.MemoizedTraversal):
  """Keeps shared objects shared, except sharding annotations."""

  def apply(self, value: Any, state: Any) -> Any:
    copied = super().apply(value, state)
    if _is_sharding_at(value, state):
      del self.memo[id(value)]
    return copied


def _copy(value: Any, state: daglish.State) -> Any:
  if _is_sharding_at(value, state):
    return daglish.BasicTraversal.run(_copy_children, value)
  return _copy_children(value, state)


def _copy_children(value: Any, state: daglish.State) -> Any:
  return state.map_children(value) if state.is_traversable(value) else value


def _is_sharding_at(value: Any, state: daglish.State) -> bool:
  last = state.current_path[-1] if state.current_path else None
  return is_sharding(value, getattr(last, 'name', None))


def _annotations(
  path: str, owner: Any, name: str, annotation: Any
) -> list[tuple[str, Any]]:
  if not isinstance(annotation, fdl.Buildable):
    return [(path, _checked_mesh_axes(path, annotation))]
  default = getattr(Config(owner), name, None)
  has_declared_class = isinstance(default, fdl.Buildable) and (
    fdl.get_callable(default) is fdl.get_callable(annotation)
  )
  if not has_declared_class:
    raise ValueError(
      f'{path} must be a Config of the class that its owner declares, got'
      f' {annotation!r}; generate code without --sharding_apart'
    )
  return [
    (f'{path}.{field}', _checked_mesh_axes(f'{path}.{field}', value))
    for field, value in fdl.ordered_arguments(annotation).items()
  ]


def _checked_mesh_axes(path: str, value: Any) -> Any:
  if isinstance(value, list | tuple):
    for element in value:
      _checked_mesh_axes(path, element)
  elif not isinstance(value, _LITERALS):
    raise ValueError(
      f'{path} must be mesh axes, or lists of them, got {value!r}'
    )
  return value
