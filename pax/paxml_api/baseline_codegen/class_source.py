# SPDX-License-Identifier: Apache-2.0
"""Source of the classes that the code generator writes."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
from fiddle import daglish
from fiddle._src.codegen.auto_config import code_ir, ir_to_cst
from libcst import matchers

from pax.paxml_api import baseline_experiment
from pax.paxml_api.baseline_codegen.passes import CodegenPass, PaxCodegenTask
from pax.tools.fiddler import tracers

_INDENT = '  '

MODULE_DOCSTRING = """Experiment {base_experiment_name} as a class of fields.

Written by paxml.tools.fiddle.codegen. List later changes by hand here.
"""


@dataclasses.dataclass(frozen=True)
class AddShardingCall:
  """Makes a function shard the model that it returns."""

  # The function to change.
  model_fixture_name: str
  # The function that shards its argument in place.
  add_sharding_function: str

  def __call__(self, fn_code: cst.FunctionDef) -> cst.FunctionDef:
    """Returns the code of the changed function.

    Raises:
      ValueError: its last statement does not return a value.
    """
    *first, last = fn_code.body.body
    match last:
      case cst.SimpleStatementLine(
        body=[cst.Return(value=cst.BaseExpression() as returned)]
      ):
        pass
      case _:
        raise ValueError(
          'Expected a single return line at the end of the model fixture '
          f'{self.model_fixture_name}'
        )
    statements = [
      cst.SimpleStatementLine(
        [cst.Assign([cst.AssignTarget(cst.Name('model_config'))], returned)]
      ),
      cst.parse_statement(f'{self.add_sharding_function}(model_config)'),
      cst.parse_statement('return model_config'),
    ]
    return _with_body(fn_code, [*first, *statements])


@dataclasses.dataclass(frozen=True)
class IrToCst(CodegenPass):
  """Writes a module with a class: fields and a method per function."""

  class_name: str = 'Experiment'
  add_sharding_call: AddShardingCall | None = None
  add_boilerplate: bool = True
  # Docstrings by name of the method.
  fixture_docstrings: Mapping[str, str] | None = None

  def __call__(self, task: PaxCodegenTask) -> cst.Module:
    docstrings = self.fixture_docstrings or {}
    methods = [
      function_source(
        self._function(fn, task), docstrings.get(fn.name.value, '')
      )
      for fn in task.top_level_call.all_fixture_functions()
    ]
    base = task.import_manager.add(baseline_experiment.BaselineExperiment)
    experiment = self.class_name.replace('NewBaseline', '')
    fields = fields_source(task.highlevel_accesses)
    source = class_source(self.class_name, base, experiment, [fields, *methods])
    if task.sharding_diff_module is not None:
      shard = extract_function(task.sharding_diff_module, 'shard_model_config')
      source += f'\n\n{function_source(shard)}'
    # Last: the code before added the imports.
    return module(experiment, task.import_manager, source)

  def _function(
    self, fn: code_ir.FixtureFunction, task: PaxCodegenTask
  ) -> cst.FunctionDef:
    code = ir_to_cst.code_for_fn(fn, task=task)
    call = self.add_sharding_call
    if call is not None and fn.name.value == call.model_fixture_name:
      return call(code)
    return code


def module(experiment: str, import_manager: Any, source: str) -> cst.Module:
  """Returns a module: docstring, imports, and the source of its classes.

  Args:
    experiment: name of the experiment, for the docstring.
    import_manager: has the imports.
    source: the source of the classes.
  """
  docstring = MODULE_DOCSTRING.format(base_experiment_name=experiment)
  imports = cst.Module(import_manager.sorted_import_lines()).code
  text = f'"""{docstring}"""\n\n{imports.strip()}\n\n\n{source.strip()}\n'
  return cst.parse_module(text)


def class_source(
  name: str, base: str, experiment: str, parts: Sequence[str]
) -> str:
  """Returns the source of a dataclass.

  Args:
    name: the name of the class.
    base: the expression of its base class.
    experiment: name of the experiment, for the docstring.
    parts: the source of its fields and methods.
  """
  docstring = f'"""Experiment definition for {experiment}."""'
  body = '\n\n'.join(filter(None, [docstring, *parts]))
  body = textwrap.indent(body, _INDENT)
  return f'@dataclasses.dataclass\nclass {name}({base}):\n{body}\n'


def fields_source(values: Mapping[str, Any], comment: str = '') -> str:
  """Returns the source of fields with these defaults, after a comment."""
  lines = [f'{name}: {_field(value)}' for name, value in values.items()]
  if lines and comment:
    lines.insert(0, f'# {comment}')
  return '\n'.join(lines)


def function_source(function: cst.FunctionDef, docstring: str = '') -> str:
  """Returns the source of a function, with a docstring if it is given."""
  if docstring:
    text = inspect.cleandoc(docstring)
    if '\n' in text:
      text = textwrap.indent(f'{text}\n', _INDENT).strip(' ') + _INDENT
    statement = cst.parse_statement(f'"""{text}"""')
    function = _with_body(function, [statement, *function.body.body])
  function = function.with_changes(leading_lines=[])
  return cst.Module([function], default_indent=_INDENT).code.strip()


def extract_function(source: cst.Module, name: str) -> cst.FunctionDef:
  """Returns the function `name` of a module.

  Raises:
    ValueError: the module has none, or several.
  """
  found = matchers.findall(source, matchers.FunctionDef(matchers.Name(name)))
  functions = [node for node in found if isinstance(node, cst.FunctionDef)]
  if len(functions) != 1:
    raise ValueError(
      f'a module must have one function {name}, got {len(functions)}'
    )
  return functions[0]


def with_statements(
  function: cst.FunctionDef, first: str, last: str
) -> cst.FunctionDef:
  """Returns a function with a statement before and one after its own."""
  return _with_body(
    function,
    [
      cst.parse_statement(first),
      *function.body.body,
      cst.parse_statement(last),
    ],
  )


def _with_body(
  function: cst.FunctionDef, statements: Sequence[Any]
) -> cst.FunctionDef:
  body = function.body.with_changes(body=list(statements))
  return function.with_changes(body=body)


def _field(value: Any) -> str:
  """Returns `int = 3`: the type and the default of a field."""
  value = tracers.remove_tracers(value)
  kind = next((t for t in tracers.TYPES if isinstance(value, t)), None)
  annotation = 'Any' if kind is None else kind.__name__
  code = cst.Module([]).code_for_node(ir_to_cst.code_for_expr(value))
  if not daglish.is_immutable(value):
    code = f'dataclasses.field(default_factory=lambda: {code})'
  return f'{annotation} = {code}'
