# SPDX-License-Identifier: Apache-2.0
"""Python code that makes a Config again, by Fiddle's own generator.

Fiddle's `new_codegen` writes Configs of numbers and strings. The one below also
writes what Configs of Pax hold: initialisers and other records, NestedMaps,
dtypes, partitions, and tags, most of which come with the class.
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

# What passes of the generator read and write has no public name.
from fiddle._src.codegen.auto_config import code_ir, import_manager_wrapper
from fiddle.codegen import codegen as fiddle_codegen
from fiddle.extensions import jax as jax_extension

from praxis import nested_map

# What has an attribute of this name is written as the name that it holds.
CODE_NAME = '__code_name__'

# What `repr` writes as Python reads it.
_LITERALS = (int, float, bool, str, bytes, complex, type(None), type(...))

# Rooms whose modules are named by the room, as users import them.
for _module, _room in (
  ('praxis.pax_fiddle.buildables', 'from praxis import pax_fiddle'),
  ('praxis.base_layer.initializers', 'from praxis import base_layer'),
  ('praxis.base_layer.weight_params', 'from praxis import base_layer'),
):
  fiddle_codegen.register_import_alias(_module, _room)
jax_extension.enable()


@dataclasses.dataclass(frozen=True)
class Call:
  """Stands in a Config for what a function makes; code calls that."""

  # The function, and its one argument.
  function: Callable[[Any], Any]
  argument: Any


def new_codegen(
  config: Any,
  *,
  sub_fixtures: dict[str, Any] | None = None,
  **options: Any,
) -> str:
  """Returns a module's code, with a function that returns `config`.

  Args:
    config: a Config, or a container of them.
    sub_fixtures: parts of it that get functions of their own, by name.
    **options: those of Fiddle's: top_level_fixture_name,
      max_expression_complexity (what is larger gets a variable),
      include_history and debug_print.

  Raises:
    ValueError: a value has no name to import it by, as lambdas have none, and
      cannot be written; the error says where it stands.
  """
  generator = fiddle_codegen.code_generator(**options)
  # Return types are left out, of which Fiddle names some without an import.
  generator.passes[:] = [
    dataclasses.replace(step, fn=_write_symbols) if _writes(step) else step
    for step in generator.passes
    if type(step).__name__ != 'AddTypeSignatures'
  ]
  return generator(config, sub_fixtures=sub_fixtures).code


def _writes(step: Any) -> bool:
  """Whether this pass replaces Configs by the calls that make them."""
  return hasattr(step, 'format_history')


def _write_symbols(
  task: code_ir.CodegenTask, *, format_history: Callable[..., Any]
) -> None:
  """Replaces all that is not a literal by the call or name that makes it."""
  writer = _Writer(task.import_manager, format_history)
  for function in task.top_level_call.all_fixture_functions():
    function.replace_with(daglish.MemoizedTraversal.run(writer.write, function))


class _Writer:
  """Replaces values; `imports` collects what the code has to import."""

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
    if (parts := _call_that_makes(value)) is not None:
      return self._call(*parts, state)
    if state.is_traversable(value):
      return state.map_children(value)
    if type(value) in _LITERALS:
      return value
    return self._symbol(value, state)

  def _config(self, value: fdl.Buildable, state: daglish.State) -> Any:
    made = fdl.get_callable(value)
    arguments = {
      name: state.call(argument, daglish.Attr(str(name)))
      for name, argument in fdl.ordered_arguments(value).items()
    }
    # A new Config has tags already, those that the fields of its class say.
    tags_of_class = type(value)(made).__argument_tags__
    for name, tags in value.__argument_tags__.items():
      more = sorted(tags - tags_of_class.get(name, set()), key=str)
      if more:
        tagged = {'tags': more}
        if name in arguments:
          tagged['default'] = arguments[name]
        arguments[name] = self._call(fdl.TaggedValue, [], tagged, state)
    return code_ir.SymbolOrFixtureCall(
      symbol_expression=self._symbol(type(value), state),
      positional_arg_expressions=[self._symbol(made, state)],
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
    """Returns the name of a class or function, which gets imported."""
    if not _is_importable(value):
      where = daglish.path_str(state.current_path)
      raise ValueError(
        f'{where} must be a literal, a record of them, or what a module holds '
        f'by its name, for code to make it again; got {value!r}; use a '
        'function of a module, or a Config'
      )
    return import_manager_wrapper.add(value, self.imports)


def _call_that_makes(
  value: Any,
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]] | None:
  """Returns a callable, arguments and keywords; None if there is no such."""
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
  if isinstance(value, tuple) and hasattr(value, '_fields'):
    return type(value), [], value._asdict()
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return type(value), [], {name: getattr(value, name) for name in fields}
  return None


def _is_importable(value: Any) -> bool:
  """Whether the module of `value` holds it by its name."""
  module = inspect.getmodule(value)
  names = getattr(value, '__qualname__', None)
  if module is None or names is None:
    return False
  found: Any = module
  for name in names.split('.'):
    found = getattr(found, name, None)
  return found is value
