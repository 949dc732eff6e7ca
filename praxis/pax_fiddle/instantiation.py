# SPDX-License-Identifier: Apache-2.0
"""Building of objects from trees of Configs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle import daglish
from flax.linen import module as flax_module

from praxis.pax_fiddle import build_errors, template_arguments, traversers


def build(buildable: Any) -> Any:
  """Builds every Config within `buildable` except templates.

  A Config that is referenced twice is built once. Layers pass the inherited
  values (dtypes, mesh, initializer) to the layers built with them. Flax chooses
  the parent of the outermost modules: in a compact method, the module whose
  method runs; others get the module that they are assigned to.
  """
  original = buildable
  buildable = template_arguments.wrap_templates(buildable)
  buildable = copy_inheritable_base_layer_params(buildable)
  return _build(buildable, original)


def build_with_empty_flax_module_stack(buildable: Any) -> Any:
  """Builds every Config within `buildable`, templates included.

  Nothing is inherited. Modules in arguments get no parent.
  """
  return _build(buildable, buildable)


@contextlib.contextmanager
def empty_flax_module_stack() -> Iterator[None]:
  """Lets modules built in the block have no parent until they are assigned."""
  # Flax has no public way to build a detached module within another's method.
  stack = flax_module._context.module_stack
  modules = list(stack)
  stack[:] = [None]
  try:
    yield
  finally:
    stack[:] = modules


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
    return build(config)
  if hasattr(config, 'Instantiate'):
    return config.Instantiate(**overrides)
  raise ValueError(
    f'Unknown configuration type {type(config)}; pass a pax_fiddle.Config'
  )


def copy_inheritable_base_layer_params(buildable: Any) -> Any:
  """Returns `buildable`, or a copy, whose layers inherit values from owners."""
  owners: list[fdl.Buildable] = []

  def visit(value: Any, state: daglish.State) -> Any:
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)
    is_layer = hasattr(fdl.get_callable(value), 'INHERITED')
    if is_layer and owners:
      value = copy.copy(value)
      inherit(value, owners[-1])
    if is_layer:
      owners.append(value)
    try:
      return traversers.map_arguments(
        value, lambda name, argument: state.call(argument, daglish.Attr(name))
      )
    finally:
      if is_layer:
        owners.pop()

  return daglish.MemoizedTraversal.run(visit, buildable)


def inherit(child: Any, owner: Any) -> None:
  """Sets the inheritable fields of `child` to the owner's values.

  Both are layers or their Configs. `INHERITED` of the child's class lists the
  fields. A field whose value differs from the default in BaseLayer keeps it.
  """
  is_config = isinstance(child, fdl.Config)
  cls = fdl.get_callable(child) if is_config else type(child)
  # Layers are frozen.
  assign = setattr if is_config else object.__setattr__
  for name, field in getattr(cls, 'INHERITED', {}).items():
    value = getattr(owner, name, field.default)
    if value is not field.default and getattr(child, name) == field.default:
      assign(child, name, copy.deepcopy(value))


def _build(buildable: Any, original: Any) -> Any:
  """Builds all Configs; errors name their paths in `original`."""

  def visit(value: Any, state: daglish.State) -> Any:
    if isinstance(value, template_arguments.TemplateWrapper):
      return value()
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)
    with empty_flax_module_stack():
      arguments = {
        name: argument
        # A list is copied, as the object may change it.
        if traversers.is_leaf(argument) and not isinstance(argument, list)
        else state.call(argument, daglish.Attr(str(name)))
        for name, argument in value.__arguments__.items()
      }
    try:
      return _call(value, arguments)
    except Exception as e:
      path = state.current_path
      config = daglish.follow_path(original, path)
      build_errors.locate(e, config, original, daglish.path_str(path))
      raise

  return daglish.MemoizedTraversal.run(visit, buildable)


def _call(buildable: fdl.Buildable, arguments: dict[str | int, Any]) -> Any:
  """Calls the class or function with built arguments.

  `fiddle.building.call_buildable` appends all arguments to messages of errors.
  """
  signature = buildable.__signature_info__
  args, kwargs = signature.transform_to_args_kwargs(arguments)
  return buildable.__build__(*args, **kwargs)
