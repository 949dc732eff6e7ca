# SPDX-License-Identifier: Apache-2.0
"""Generates the code of baseline experiments, and of experiments over them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import libcst as cst
from fiddle import diffing, validation
from fiddle._src.codegen.auto_config import code_ir
from fiddle.codegen import codegen as fiddle_codegen
from fiddle.codegen import codegen_diff
from fiddle.experimental import visualize

from pax import base_experiment
from pax.parameterized_experiment import ParameterizedExperiment
from pax.paxml_api.baseline_codegen import class_source, passes
from pax.tools.fiddler import codegen, config_normalization, tracers
from praxis import pax_fiddle
from praxis.pax_fiddle import config_codegen

Experiment = type[base_experiment.BaseExperiment]
ExperimentConfig = pax_fiddle.Config[ParameterizedExperiment]

# Modules whose names users import from their package.
for _module, _import in (
  (
    'pax.paxml_api.baseline_experiment',
    'from paxml.experimental import baseline_experiment',
  ),
  ('pax.tasks_lib.single_task', 'from pax import tasks_lib'),
):
  fiddle_codegen.register_import_alias(_module, _import)

_FIXTURE = 'experiment_fixture'
_DOCSTRINGS = {
  _FIXTURE: 'Returns the Config of the experiment.',
  'model_fixture': 'Returns the Config of the model.',
  'input_specs_provider_fixture': 'Returns the Config of the input specs.',
  'eval_datasets_fixture': 'Returns the Configs of the eval datasets.',
  'decode_datasets_fixture': 'Returns the Configs of the decode datasets.',
  'train_datasets_fixture': 'Returns the Configs of the training datasets.',
  'init_from_checkpoint_rules_fixture': (
    'Returns the rules of initialization by checkpoint.'
  ),
}


def code_generator_config(
  top_level_fixture_name: str = 'config_fixture',
  max_expression_complexity: int | None = None,
  include_history: bool = False,
  debug_print: bool = False,
  lowercase_highlevel_settings: bool = True,
  class_name: str = 'Experiment',
  init_checkpoint_experiments_strict: bool = True,
  add_sharding_call: class_source.AddShardingCall | None = None,
  fixture_docstrings: Mapping[str, str] | None = None,
) -> fdl.Config[Callable[..., cst.Module]]:
  """Returns the Config of a generator of classes.

  The generator takes a Config, sub_fixtures, init_checkpoint_experiments and
  model_sharding_diff; it returns a `cst.Module`.

  Args:
    top_level_fixture_name: the method that returns the whole Config.
    max_expression_complexity: larger expressions are assigned to a variable.
    include_history: whether to write who set each field as a comment.
    debug_print: whether to print the code after each pass.
    lowercase_highlevel_settings: whether fields of the class are in lower case.
    class_name: the name of the class.
    init_checkpoint_experiments_strict: see InitCheckpointRulesFromOtherTask.
    add_sharding_call: adds a call that shards the model.
    fixture_docstrings: docstrings by name of the method.
  """
  config = fiddle_codegen.code_generator.as_buildable(
    top_level_fixture_name=top_level_fixture_name,
    max_expression_complexity=max_expression_complexity,
    include_history=include_history,
    debug_print=debug_print,
  )
  steps = {fdl.get_callable(step).__name__: step for step in config.passes}
  # Fiddle does not import all names of the return types.
  del steps['AddTypeSignatures']
  fdl.update_callable(steps['InitTask'], passes.InitTask)
  if max_expression_complexity is not None:
    variables = steps['MoveComplexNodesToVariables']
    variables.is_complex = fdl.Config(
      passes.PaxExpressionIsComplex, base=variables.is_complex
    )
  steps['MakeSymbolicReferences'].fn = config_codegen.write_symbols
  fdl.update_callable(steps['IrToCst'], class_source.IrToCst)
  fdl.assign(
    steps['IrToCst'],
    class_name=class_name,
    add_sharding_call=add_sharding_call,
    fixture_docstrings=fixture_docstrings,
  )
  # After the parts that get functions, which are found by identity.
  inserted: dict[str, list[fdl.Config[Any]]] = {
    'MoveSharedNodesToVariables': [
      fdl.Config(
        passes.InitCheckpointRulesFromOtherTask,
        strict=init_checkpoint_experiments_strict,
      ),
      fdl.Config(
        passes.HighlevelParameterization,
        lowercasing=lowercase_highlevel_settings,
      ),
    ],
    'IrToCst': [fdl.Config(passes.MakeShardingFiddler)],
  }
  config.passes = [
    new for name in steps for new in (*inserted.get(name, ()), steps[name])
  ]
  return config


def codegen_baseline_from_legacy(
  experiment_cls: Experiment,
  *,
  has_train_dataset: bool = True,
  has_input_specs_provider: bool = True,
  unshare_sharding_config: bool = True,
  remove_defaults: bool = True,
  remove_eval_datasets: bool = False,
  remove_decode_datasets: bool = False,
  factor_out_sharding_annotations: bool = True,
  lowercase_highlevel_settings: bool = True,
  additional_sub_fixtures: Callable[[ExperimentConfig], dict[str, Any]]
  | None = None,
  fixture_docstrings: Mapping[str, str] | None = None,
  init_checkpoint_experiments: passes.Experiments | None = None,
  init_checkpoint_experiments_strict: bool = True,
) -> str:
  """Returns code with a BaselineExperiment that declares the same.

  Args:
    experiment_cls: the experiment.
    has_train_dataset: whether the experiment has training datasets.
    has_input_specs_provider: whether it has an input specs provider.
    unshare_sharding_config: whether each layer gets its own annotations.
    remove_defaults: whether to leave out fields that are at their defaults.
    remove_eval_datasets: whether to leave out the eval datasets.
    remove_decode_datasets: whether to leave out the decode datasets.
    factor_out_sharding_annotations: whether a function of its own shards the
      model.
    lowercase_highlevel_settings: whether the constants are in lower case.
    additional_sub_fixtures: returns parts of the Config that get methods of
      their own, by name.
    fixture_docstrings: docstrings by name of the method; the usual methods have
      one already.
    init_checkpoint_experiments: see InitCheckpointRulesFromOtherTask.
    init_checkpoint_experiments_strict: see InitCheckpointRulesFromOtherTask.

  Raises:
    ValueError: the Config has objects that are no Configs or literals.
  """
  normalizer = config_normalization.ConfigNormalizer(
    remove_sharding_annotations=factor_out_sharding_annotations,
    unshare_sharding_config=unshare_sharding_config,
    remove_defaults=remove_defaults,
    remove_eval_datasets=remove_eval_datasets,
    remove_decode_datasets=remove_decode_datasets,
  )

  def config_of(cls: Experiment) -> ExperimentConfig:
    return codegen.from_legacy(
      cls,
      normalizer=normalizer,
      has_train_dataset=has_train_dataset,
      has_input_specs_provider=has_input_specs_provider,
    )

  # Without tracers, which are no literals.
  validation.check_no_custom_objects(config_of(experiment_cls))
  config = config_of(tracers.make_subclass_mixin(experiment_cls))
  sharding_diff = None
  if factor_out_sharding_annotations:
    sharding_diff = passes.sharding_diff(
      experiment_cls, unshare_sharding_config=unshare_sharding_config
    )
  add_sharding_call = None
  if sharding_diff is not None:
    add_sharding_call = class_source.AddShardingCall(
      'model_fixture', 'shard_model_config'
    )
  generate = fdl.build(
    code_generator_config(
      top_level_fixture_name=_FIXTURE,
      class_name=f'{experiment_cls.__name__}NewBaseline',
      max_expression_complexity=6,
      lowercase_highlevel_settings=lowercase_highlevel_settings,
      init_checkpoint_experiments_strict=init_checkpoint_experiments_strict,
      add_sharding_call=add_sharding_call,
      fixture_docstrings={**_DOCSTRINGS, **(fixture_docstrings or {})},
    )
  )
  sub_fixtures = _sub_fixtures(config)
  if additional_sub_fixtures is not None:
    sub_fixtures |= additional_sub_fixtures(config)
  return generate(
    config,
    sub_fixtures=sub_fixtures,
    model_sharding_diff=sharding_diff,
    init_checkpoint_experiments=init_checkpoint_experiments,
  ).code


def codegen_experiment_diff(
  experiment_cls: Experiment,
  *,
  baseline: type[Any],
  unshare_sharding_config: bool = True,
  remove_defaults: bool = True,
  lowercase_highlevel_settings: bool | None = None,
  has_train_dataset: bool = False,
  has_input_specs_provider: bool = False,
) -> str:
  """Returns code with a subclass of `baseline` that declares an experiment.

  Args:
    experiment_cls: the experiment.
    baseline: the class of a similar experiment, which
      `codegen_baseline_from_legacy` wrote.
    unshare_sharding_config: as for the baseline.
    remove_defaults: as for the baseline.
    lowercase_highlevel_settings: whether the constants are in lower case; by
      default they are if those of the baseline are.
    has_train_dataset: whether the experiment has training datasets.
    has_input_specs_provider: whether it has an input specs provider.
  """
  fields = [field.name for field in dataclasses.fields(baseline)]
  if lowercase_highlevel_settings is None:
    lowercase_highlevel_settings = all(name.islower() for name in fields)
  settings = _settings(experiment_cls, fields, lowercase_highlevel_settings)
  defaults = baseline()
  overrides = {
    name: settings[name]
    for name in fields
    if name in settings and settings[name] != getattr(defaults, name)
  }
  new = {k: v for k, v in sorted(settings.items()) if k not in fields}

  old_config = baseline(**copy.deepcopy(overrides)).experiment_fixture()
  if remove_defaults:
    old_config = visualize.with_defaults_trimmed(
      old_config, remove_deep_defaults=True
    )
  config = codegen.from_legacy(
    experiment_cls,
    normalizer=config_normalization.ConfigNormalizer(
      unshare_sharding_config=unshare_sharding_config,
      remove_defaults=remove_defaults,
    ),
    has_train_dataset=has_train_dataset,
    has_input_specs_provider=has_input_specs_provider,
  )
  imports = code_ir._init_import_manager()
  imports.add_by_name('dataclasses')
  parts = [
    class_source.fields_source(
      overrides, 'Overrides to existing high-level settings.'
    ),
    class_source.fields_source(new, 'New high-level settings.'),
  ]
  diff = diffing.build_diff(old_config, config)
  if diff.changes:
    parts.append(_changes_source(diff, old_config, imports))
  name = experiment_cls.__name__
  source = class_source.class_source(
    f'{name}NewExperiment', imports.add(baseline), name, parts
  )
  return class_source.module(name, imports, source).code


def _sub_fixtures(config: ExperimentConfig) -> dict[str, Any]:
  """Returns the parts of an experiment that get methods of their own."""
  parts = {
    'model_fixture': config.task.model,
    'train_datasets_fixture': _argument(config, 'train_datasets'),
    'eval_datasets_fixture': _argument(config, 'eval_datasets'),
    'input_specs_provider_fixture': _argument(config, 'input_specs_provider'),
    'decode_datasets_fixture': _argument(config, 'decode_datasets'),
    'init_from_checkpoint_rules_fixture': _argument(
      _argument(config.task, 'train'), 'init_from_checkpoint_rules'
    ),
  }
  return {name: part for name, part in parts.items() if part}


def _argument(config: Any, name: str) -> Any:
  """Returns an argument of a Config; None if it is not set."""
  return None if config is None else config.__arguments__.get(name)


def _settings(
  experiment_cls: Experiment, fields: list[str], lowercase: bool
) -> dict[str, Any]:
  """Returns the constants and computed properties of an experiment."""
  experiment = experiment_cls()
  settings = {}
  for name in dir(experiment):
    key = name.lower() if lowercase else name
    if name.startswith('_') and name not in fields:
      continue
    value = getattr(experiment, name)
    if isinstance(value, tracers.TYPES):
      settings[key] = value
  return settings


def _changes_source(
  diff: diffing.Diff, old: ExperimentConfig, imports: Any
) -> str:
  """Returns the method that applies a diff to the Config of the base class."""
  source = codegen_diff.fiddler_from_diff(
    diff,
    old=old,
    func_name=_FIXTURE,
    param_name='config',
    import_manager=imports,
    variable_naming='short',
  )
  function = class_source.with_statements(
    class_source.extract_function(source, _FIXTURE),
    'config = super().experiment_fixture()',
    'return config',
  )
  return class_source.function_source(function).replace(
    f'def {_FIXTURE}(config)', f'def {_FIXTURE}(self)', 1
  )
