# SPDX-License-Identifier: Apache-2.0
"""Writes an experiment as Python code that makes its configuration.

Code with all values resolved, with the constants of the experiment as names,
or with the sharding annotations in a function of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from fiddle import daglish

from pax import base_experiment
from pax.parameterized_experiment import ParameterizedExperiment
from pax.runner import overrides
from pax.tools.fiddler import (
  code_format,
  config_normalization,
  sharding,
  tracers,
)
from praxis import pax_fiddle
from praxis.pax_fiddle import config_codegen

Config = pax_fiddle.Config
Experiments = Mapping[str, type[base_experiment.BaseExperiment]]

# Name of the generated function.
FIXTURE = 'experiment'

_SHARDING_CODE = """

def add_sharding(config):
{lines}


def {name}():
  config = {name}_without_sharding()
  add_sharding(config)
  return config
"""


def from_legacy(
  experiment_cls: type[base_experiment.BaseExperiment],
  *,
  normalizer: config_normalization.ConfigNormalizer
  | None = config_normalization.ConfigNormalizer(),  # noqa: B008 (frozen)
  has_train_dataset: bool = True,
  has_input_specs_provider: bool = True,
) -> Config[ParameterizedExperiment]:
  """Returns the Config of an experiment that declares the same.

  Args:
    experiment_cls: the experiment.
    normalizer: simplifies the Config; None does not.
    has_train_dataset: whether the experiment has training datasets.
    has_input_specs_provider: whether it has an input specs provider.
  """
  experiment = experiment_cls()
  config = Config(
    ParameterizedExperiment,
    task=experiment.task(),
    eval_datasets=experiment.eval_datasets(),
  )
  if has_train_dataset:
    config.train_datasets = experiment.train_datasets()
  if has_input_specs_provider:
    config.input_specs_provider = experiment.get_input_specs_provider_params()
  if decode_datasets := list(experiment.decode_datasets()):
    config.decode_datasets = decode_datasets
  return normalizer(config) if normalizer else config


def normalizer(**options: Any) -> config_normalization.ConfigNormalizer:
  """Returns the normalizer for code, which can make NestedMaps and dataclasses.

  `options` are other fields of ConfigNormalizer.
  """
  return config_normalization.ConfigNormalizer(
    convert_dataclasses=False, wrap_nested_maps=False, **options
  )


def codegen_experiment(
  config: Config[ParameterizedExperiment],
  max_expression_complexity: int | None = None,
  name: str = FIXTURE,
) -> str:
  """Returns code with a function `name` that returns `config`.

  Task and model have functions of their own. An expression with more parts
  than `max_expression_complexity` is assigned to a variable.

  Raises:
    ValueError: the Config holds a value without a literal, such as a lambda.
  """
  code = config_codegen.new_codegen(
    config,
    top_level_fixture_name=name,
    sub_fixtures={'task': config.task, 'model': config.task.model},
    max_expression_complexity=max_expression_complexity,
  )
  return code_format.format_code(code)


def codegen_with_sharding_apart(
  config: Config[Any], max_expression_complexity: int | None = None
) -> str:
  """Returns code with `add_sharding(config)`, which `experiment()` calls."""
  code = codegen_experiment(
    sharding.remove_sharding(config),
    max_expression_complexity,
    name=f'{FIXTURE}_without_sharding',
  )
  annotations = sharding.sharding_annotations(config)
  lines = [f'  config{path} = {value!r}' for path, value in annotations]
  body = '\n'.join(lines or ['  del config'])
  return code.rstrip() + '\n' + _SHARDING_CODE.format(lines=body, name=FIXTURE)


def codegen_with_constants(
  experiment_cls: type[base_experiment.BaseExperiment],
  max_expression_complexity: int | None = None,
  **options: Any,
) -> str:
  """Returns code that assigns the constants first, and uses them by name.

  A constant that does not reach the Config unchanged appears as the values
  computed from it; one that only sets defaults is left out.

  Args:
    experiment_cls: the experiment.
    max_expression_complexity: an expression with more parts is assigned to a
      variable.
    **options: those of `from_legacy`.
  """
  named = _with_tracers(experiment_cls)
  config = from_legacy(named, normalizer=normalizer(), **options)
  config = daglish.MemoizedTraversal.run(_with_plain_keys, config)
  code = codegen_experiment(config, max_expression_complexity)
  used = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}
  constants = {
    name: value
    for name, value in vars(named).items()
    if name in used and hasattr(value, config_codegen.CODE_NAME)
  }
  return _insert_constants(code, constants)


def name_init_checkpoint_experiments(
  task: Config[Any], experiments: Experiments, *, strict: bool = True
) -> Config[Any]:
  """Returns a copy of a task whose init rules name experiments.

  `task.train.init_from_checkpoint_rules` may hold the whole task of another
  experiment, whose code would be longer than that of the experiment itself.

  Args:
    task: the Config of the task.
    experiments: the experiment of each checkpoint directory.
    strict: whether each directory must have an experiment.

  Raises:
    ValueError: a directory has none.
  """
  rules = task.train.init_from_checkpoint_rules
  if not isinstance(rules, Mapping):
    return task
  missing = [path for path in rules if path not in experiments]
  if strict and missing:
    raise ValueError(
      f'init_from_checkpoint_rules has {missing[0]!r}, so experiments must name'
      f' its experiment; got {", ".join(experiments) or "none"}'
    )
  named = task.clone()
  named.train.init_from_checkpoint_rules = {
    path: _name_experiment(rule, experiments.get(path))
    for path, rule in rules.items()
  }
  return named


def task_of(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> Config[Any]:
  """Returns the task of an experiment."""
  return experiment_cls().task()


def input_specs_provider_of(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> Config[Any]:
  """Returns the input specs provider of an experiment."""
  return experiment_cls().get_input_specs_provider_params()


def _with_tracers(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> type[base_experiment.BaseExperiment]:
  """Returns a subclass of the experiment whose constants are tracers."""
  body = {
    '__module__': experiment_cls.__module__,
    '__doc__': experiment_cls.__doc__,
  }
  # A bool has no tracer that layers could use in its place.
  traced = tuple(kind for kind in tracers.TYPES if kind is not bool)
  for name, value in overrides.constants_of(experiment_cls).items():
    if type(value) in traced:
      body[name] = tracers.make_tracer(name, value)
  return type(experiment_cls.__name__, (experiment_cls,), body)


def _with_plain_keys(value: Any, state: daglish.State) -> Any:
  """Replaces keys of dicts that are tracers, for which code has no names."""
  if state.is_traversable(value):
    value = state.map_children(value)
  if type(value) is dict:
    return {tracers.remove_tracers(k): v for k, v in value.items()}
  return value


def _insert_constants(code: str, constants: dict[str, Any]) -> str:
  """The code with `NAME = value` lines after its imports."""
  nodes = ast.parse(code).body
  imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
  end = max((n.end_lineno or n.lineno for n in imports), default=0)
  lines = code.splitlines()
  assignments = [f'{name} = {value!r}' for name, value in constants.items()]
  return '\n'.join([*lines[:end], '', *assignments, *lines[end:], ''])


def _name_experiment(
  rules: Any, experiment_cls: type[base_experiment.BaseExperiment] | None
) -> Any:
  if experiment_cls is None:
    return rules
  functions = {
    'task_p': task_of,
    'input_specs_provider_p': input_specs_provider_of,
  }
  return rules._replace(
    **{
      field: config_codegen.Call(function, experiment_cls)
      for field, function in functions.items()
      if getattr(rules, field) is not None
    }
  )
