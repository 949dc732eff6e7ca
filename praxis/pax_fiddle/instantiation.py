# SPDX-License-Identifier: Apache-2.0
"""Building of objects from trees of Configs."""

from __future__ import annotations

import copy
from typing import Any

import fiddle as fdl
from fiddle import daglish

from praxis.pax_fiddle import build_errors, metadata, template_arguments


def build(buildable: Any) -> Any:
  """Builds every Config within `buildable` except templates.

  A Config that is referenced twice is built once. Layers pass the inherited
  values (dtypes, mesh, initializer) to the layers built with them.
  """
  return _build(buildable, is_detached=True)


def instantiate(config: Any, **overrides: Any) -> Any:
  """Builds a copy of `config` with `overrides` assigned.

  A layer that is built in a compact method of a flax module becomes a child of
  that module, as if its class was called there.

  Raises:
    ValueError: `config` is not a Config and has no method `Instantiate`.
  """
  if isinstance(config, fdl.Buildable):
    config = copy.copy(config)
    for name, value in overrides.items():
      setattr(config, name, value)
    return _build(config, is_detached=False)
  if hasattr(config, 'Instantiate'):
    return config.Instantiate(**overrides)
  raise ValueError(
    f'Unknown configuration type {type(config)}; pass a pax_fiddle.Config'
  )


def copy_inheritable_base_layer_params(buildable: Any) -> Any:
  """Returns a copy in which layers have the values inherited from owners."""
  owners: list[fdl.Buildable] = []

  def visit(value: Any, state: daglish.MemoizedTraversal) -> Any:
    if not hasattr(_callable(value), 'INHERITED'):
      return state.map_children(value)
    if owners:
      value = copy.copy(value)
      inherit(value, owners[-1])
    owners.append(value)
    try:
      return state.map_children(value)
    finally:
      owners.pop()

  return daglish.MemoizedTraversal.run(visit, buildable)


def inherit(child: Any, owner: Any) -> None:
  """Sets the unset inheritable fields of `child` to the owner's values.

  Both are layers or their Configs. A field is inheritable if the child's class
  lists it in `INHERITED` and does not redeclare its default. In a layer a field
  is unset if it has the default.
  """
  is_config = isinstance(child, fdl.Config)
  cls = _callable(child) if is_config else type(child)
  for name, field in getattr(cls, 'INHERITED', {}).items():
    if not hasattr(owner, name) or _is_redeclared(cls, name):
      continue
    value = copy.deepcopy(getattr(owner, name))
    if is_config and name not in child.__arguments__:
      setattr(child, name, value)
    elif not is_config and getattr(child, name) is field.default:
      # Layers are frozen.
      object.__setattr__(child, name, value)


def _build(buildable: Any, is_detached: bool) -> Any:
  """Builds `buildable`, with parent=None for the flax modules within it.

  The module that a parentless module is assigned to becomes its parent. If
  `is_detached` is False, flax chooses the parent of the outermost module.
  """

  def visit(value: Any, state: daglish.MemoizedTraversal) -> Any:
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)
    arguments = {
      name: state.call(argument, daglish.Attr(name))
      for name, argument in value.__arguments__.items()
    }
    fields = metadata.fields_of(_callable(value))
    has_parent = any(f.name == 'parent' for f in fields)
    if has_parent and (is_detached or state.current_path):
      arguments.setdefault('parent', None)
    try:
      return _call(value, arguments)
    except Exception as e:
      path = state.current_path
      config = daglish.follow_path(original, path)
      build_errors.locate(e, config, original, daglish.path_str(path))
      raise

  original = buildable
  buildable = template_arguments.wrap_templates(buildable)
  buildable = copy_inheritable_base_layer_params(buildable)
  return daglish.MemoizedTraversal.run(visit, buildable)


def _call(buildable: fdl.Buildable, arguments: dict[str, Any]) -> Any:
  """Calls the class or function with built arguments.

  `fiddle.building.call_buildable` appends all arguments to messages of errors.
  """
  signature = buildable.__signature_info__
  args, kwargs = signature.transform_to_args_kwargs(arguments)
  return buildable.__build__(*args, **kwargs)


def _callable(value: Any) -> Any:
  return fdl.get_callable(value) if isinstance(value, fdl.Buildable) else None


def _is_redeclared(cls: Any, name: str) -> bool:
  base = cls.INHERITED[name]
  own = next(f for f in metadata.fields_of(cls) if f.name == name)
  return own.default is not base.default
