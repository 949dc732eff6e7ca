# SPDX-License-Identifier: Apache-2.0
"""Python code generation for Configs, by passes on top of Fiddle's generator.

Fiddle's `new_codegen` supports Configs of numbers and strings. `new_codegen` of
this module also supports the values in Configs of Pax: dataclasses such as
WeightInit, NestedMaps, dtypes, PartitionSpecs and tags.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import jax
import numpy as np
from fiddle import daglish

# The types that the generator's passes exchange have no public names.
from fiddle._src.codegen.auto_config import code_ir, import_manager_wrapper
from fiddle.codegen import codegen as fiddle_codegen
from fiddle.extensions import jax as jax_extension

from praxis import nested_map

# An object with this attribute is written as the name in the attribute.
CODE_NAME = '__highlevel_name__'

# Types whose `repr` is Python source.
_LITERALS = (int, float, bool, str, bytes, complex, type(None), type(...))

# Modules whose names users import from their package.
for _module, _import in (
  ('praxis.pax_fiddle.buildables', 'from praxis import pax_fiddle'),
  ('praxis.base_layer.initializers', 'from praxis import base_layer'),
  ('praxis.base_layer.weight_params', 'from praxis import base_layer'),
):
  fiddle_codegen.register_import_alias(_module, _import)
jax_extension.enable()


@dataclasses.dataclass(frozen=True)
class Call:
  """A placeholder in a Config; the generated code calls the function."""

  # The function and its only argument.
  function: Callable[[Any], Any]
  argument: Any


def new_codegen(
  config: Any,
  *,
  sub_fixtures: dict[str, Any] | None = None,
  **options: Any,
) -> str:
  """Returns the code of a module with a function that returns `config`.

  Args:
    config: a Config, or a container of them.
    sub_fixtures: parts of it that get functions of their own, by name.
    **options: options of Fiddle's generator: top_level_fixture_name,
      max_expression_complexity (larger expressions get a variable),
      include_history and debug_print.

  Raises:
    ValueError: a value, such as a lambda, is neither a literal nor importable.
  """
  generator = fiddle_codegen.code_generator(**options)
  # Without return types: Fiddle does not import all that it names.
  generator.passes[:] = [
    dataclasses.replace(step, fn=write_symbols) if _writes(step) else step
    for step in generator.passes
    if type(step).__name__ != 'AddTypeSignatures'
  ]
  return generator(config, sub_fixtures=sub_fixtures).code


def _writes(step: Any) -> bool:
  """Whether this pass replaces Configs by the calls that create them."""
  return hasattr(step, 'format_history')


def write_symbols(
  task: code_ir.CodegenTask, *, format_history: Callable[..., Any]
) -> None:
  """Replaces all values except literals by calls or names.

  Args:
    task: the code of the functions, changed in place.
    format_history: returns the comments on the history of a Config.

  Raises:
    ValueError: a value is neither a literal nor importable.
  """
  writer = _Writer(task.import_manager, format_history)
  for function in task.top_level_call.all_fixture_functions():
    function.replace_with(daglish.MemoizedTraversal.run(writer.write, function))


class _Writer:
  """Replaces values by code nodes; `imports` collects the imports."""

  def __init__(self, imports: Any, format_history: Callable[..., Any]):
    self.imports = imports
    self.format_history = format_history

  def write(self, value: Any, state: daglish.State) -> Any:
    """Returns a literal, a container, or a node of generated code."""
    if type(value).__module__ == code_ir.__name__:
      return state.map_children(value) if state.is_traversable(value) else value
    if (name := getattr(value, CODE_NAME, None)) and not isinstance(
      value, fdl.Buildable
    ):
      return code_ir.VariableReference(code_ir.Name(name))
    if isinstance(value, fdl.Buildable):
      return self._config(value, state)
    if isinstance(value, enum.Enum):
      kind = self._symbol(type(value), state)
      return code_ir.AttributeExpression(kind, value.name)
    if (parts := _constructor_call(value)) is not None:
      return self._call(*parts, state)
    if state.is_traversable(value):
      return state.map_children(value)
    if type(value) in _LITERALS:
      return value
    return self._symbol(value, state)

  def _config(self, value: fdl.Buildable, state: daglish.State) -> Any:
    fn_or_cls = fdl.get_callable(value)
    arguments = {
      str(name): state.call(argument, daglish.Attr(str(name)))
      for name, argument in fdl.ordered_arguments(value).items()
    }
    # A new Config already has the tags of the fields of its class.
    tags_of_class = type(value)(fn_or_cls).__argument_tags__
    for key, tags in value.__argument_tags__.items():
      name = str(key)
      added = sorted(tags - tags_of_class.get(key, set()), key=str)
      if added:
        tagged: dict[str, Any] = {'tags': added}
        if name in arguments:
          tagged['default'] = arguments[name]
        arguments[name] = self._call(fdl.TaggedValue, [], tagged, state)
    return code_ir.SymbolOrFixtureCall(
      symbol_expression=self._symbol(type(value), state),
      positional_arg_expressions=[self._symbol(fn_or_cls, state)],
      arg_expressions=arguments,
      history_comments=self.format_history(value),
    )

  def _call(
    self,
    function: Callable[..., Any],
    positional: list[Any],
    named: dict[str, Any],
    state: daglish.State,
  ) -> code_ir.SymbolOrFixtureCall:
    return code_ir.SymbolOrFixtureCall(
      symbol_expression=self._symbol(function, state),
      positional_arg_expressions=[
        state.call(v, daglish.Index(i)) for i, v in enumerate(positional)
      ],
      arg_expressions={
        name: state.call(v, daglish.Attr(name)) for name, v in named.items()
      },
    )

  def _symbol(self, value: Any, state: daglish.State) -> code_ir.CodegenNode:
    """Returns the name of a class or function, and imports it."""
    if not _is_importable(value):
      where = daglish.path_str(state.current_path)
      raise ValueError(
        f'{where} must be a literal, a dataclass of them, or importable by '
        f'name to be written as code; got {value!r}; use a function of a '
        'module, or a Config'
      )
    return import_manager_wrapper.add(value, self.imports)


def _constructor_call(
  value: Any,
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]] | None:
  """Returns a callable, its arguments and keywords; None for other values."""
  if isinstance(value, nested_map.NestedMap):
    return type(value), [dict(value)], {}
  if isinstance(value, Call):
    return value.function, [value.argument], {}
  if isinstance(value, functools.partial):
    return functools.partial, [value.func, *value.args], value.keywords
  if isinstance(value, jax.sharding.PartitionSpec):
    return jax.sharding.PartitionSpec, list(value), {}
  if isinstance(value, np.dtype):
    return np.dtype, [value.name], {}
  if isinstance(value, float) and not math.isfinite(value):
    return float, [repr(value)], {}
  if isinstance(value, tuple) and (names := getattr(value, '_fields', ())):
    return type(value), [], dict(zip(names, value, strict=True))
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return type(value), [], {name: getattr(value, name) for name in fields}
  return None


def _is_importable(value: Any) -> bool:
  """Whether the module of `value` has it under its name."""
  module = inspect.getmodule(value)
  names = getattr(value, '__qualname__', None)
  if module is None or names is None:
    return False
  resolved: Any = module
  for name in names.split('.'):
    resolved = getattr(resolved, name, None)
  return resolved is value
