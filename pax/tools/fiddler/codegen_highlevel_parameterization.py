# SPDX-License-Identifier: Apache-2.0
"""Code in which the constants of an experiment still stand on their own."""

from __future__ import annotations

import ast
from typing import Any

from pax import base_experiment
from pax.tools.fiddler import (
  codegen,
  codegen_tracer,
  make_parameterized_experiment,
)
from praxis.pax_fiddle import config_codegen as config_codegen


def codegen_with_constants(
  experiment_cls: type[base_experiment.BaseExperiment],
  max_expression_complexity: int | None = None,
  **options: Any,
) -> str:
  """Returns code that begins with the constants, and uses them below.

  A constant that is not passed on as it is has its consequences written out;
  one that makes no difference from a default is left out.

  Args:
    experiment_cls: the experiment.
    max_expression_complexity: an expression with more parts gets a variable.
    **options: those of `make_parameterized_experiment.from_legacy`.
  """
  named = codegen_tracer.make_subclass_mixin(experiment_cls)
  config = make_parameterized_experiment.from_legacy(
    named, normalizer=codegen.normalizer(), **options
  )
  code = codegen.codegen_experiment(config, max_expression_complexity)
  used = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}
  values = {
    name: value
    for name, value in vars(named).items()
    if name in used and hasattr(value, config_codegen.CODE_NAME)
  }
  return _with_constants(code, values)


def _with_constants(code: str, values: dict[str, Any]) -> str:
  """The code with `NAME = value` lines after its imports."""
  nodes = ast.parse(code).body
  imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
  end = max((n.end_lineno for n in imports), default=0)
  lines = code.splitlines()
  constants = [f'{name} = {value!r}' for name, value in values.items()]
  return '\n'.join([*lines[:end], '', *constants, *lines[end:], ''])
