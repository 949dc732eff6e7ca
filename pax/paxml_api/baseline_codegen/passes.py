# SPDX-License-Identifier: Apache-2.0
"""Passes of the code generator that are specific to experiments.

Fiddle's types of generated code have no public names; no other module uses
them, except `praxis.pax_fiddle.config_codegen`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import libcst as cst
from fiddle import daglish, diffing
from fiddle._src.codegen.auto_config import code_ir, import_manager_wrapper
from fiddle.codegen import codegen_diff
from fiddle.codegen.auto_config import experimental_top_level_api as generator

from pax import base_experiment, tasks_lib
from pax.tools.fiddler import sharding
from praxis import pax_fiddle

Experiments = Mapping[str, type[base_experiment.BaseExperiment] | None]
# Any: each pass takes those arguments of a generator that it names, while the
# base class declares that a pass takes all.
CodegenPass: Any = generator.CodegenPass


@dataclasses.dataclass
class PaxCodegenTask(code_ir.CodegenTask):
  """The code on its way through the passes."""

  # Fields of the generated class: the tracers by their name.
  highlevel_accesses: dict[str, Any] = dataclasses.field(default_factory=dict)
  # A module with the function that adds the sharding to a model.
  sharding_diff_module: cst.Module | None = None


@dataclasses.dataclass(frozen=True)
class InitTask(generator.InitTask):
  """Makes the PaxCodegenTask of a Config."""

  def __call__(self, value: Any, **_: Any) -> PaxCodegenTask:
    task = super().__call__(value)
    pax_task = PaxCodegenTask(
      original_config=task.original_config, top_level_call=task.top_level_call
    )
    pax_task.import_manager.add_by_name('dataclasses')
    return pax_task


@dataclasses.dataclass(frozen=True)
class InitCheckpointRulesFromOtherTask(CodegenPass):
  """Makes init rules refer to the task of another experiment.

  `task.train.init_from_checkpoint_rules` may hold the whole task of another
  experiment, whose code would be longer than that of the experiment itself.
  """

  PASS_INPUT_KWARGS = ['init_checkpoint_experiments']  # noqa: RUF012

  # Whether each checkpoint must have an experiment, and vice versa.
  strict: bool = True

  def __call__(
    self,
    task: PaxCodegenTask,
    init_checkpoint_experiments: Experiments | None = None,
  ) -> PaxCodegenTask:
    """Returns the task.

    Args:
      task: the code, changed in place.
      init_checkpoint_experiments: the experiment of each checkpoint directory.

    Raises:
      ValueError: a rule has no experiment, or an experiment no rule.
    """
    if init_checkpoint_experiments is None:
      return task
    unused = set(init_checkpoint_experiments)

    def refer(value: Any, state: daglish.State) -> Any:
      if not _is_loading_rules(value):
        is_inner = state.is_traversable(value)
        return state.map_children(value) if is_inner else value
      last = state.current_path[-1] if state.current_path else None
      if not isinstance(last, daglish.Key):
        raise ValueError(
          'CheckpointLoadingRules must be a value of a dict by checkpoint, got '
          f'one at {daglish.path_str(state.current_path) or "the root"}'
        )
      if last.key not in init_checkpoint_experiments:
        if self.strict:
          raise ValueError(
            f'No task for checkpoint {last.key}: init_checkpoint_experiments '
            'needs an entry for it, or set '
            'init_checkpoint_experiments_strict=False.'
          )
        return value
      unused.discard(last.key)
      return _with_experiment(
        value, init_checkpoint_experiments[last.key], task.import_manager
      )

    _rewrite_functions(task, refer)
    if unused and self.strict:
      raise ValueError(
        "Didn't encounter rules of these checkpoints in the Config: "
        f'{sorted(unused)}; init_checkpoint_experiments must have the keys of '
        'task.train.init_from_checkpoint_rules'
      )
    return task


@dataclasses.dataclass(frozen=True)
class HighlevelParameterization(CodegenPass):
  """Makes the functions methods that read the constants from `self`."""

  # Whether to write the names of the constants in lower case.
  lowercasing: bool = False

  def __call__(self, task: PaxCodegenTask, **_: Any) -> PaxCodegenTask:
    self_name = code_ir.Name('self', is_generated=False)
    self_reference = code_ir.VariableReference(self_name)

    def field_of_self(tracer: Any) -> Any:
      name = getattr(tracer, '__highlevel_name__', None)
      if name is None:
        return tracer
      name = name.lower() if self.lowercasing else name
      task.highlevel_accesses[name] = tracer
      return code_ir.AttributeExpression(self_reference, name)

    def rewrite(value: Any, state: daglish.State) -> Any:
      if hasattr(value, '__highlevel_name__'):
        return field_of_self(value)
      if not state.is_traversable(value):
        return value
      value = state.map_children(value)
      if isinstance(value, dict):  # daglish does not visit keys.
        return {field_of_self(key): child for key, child in value.items()}
      if isinstance(value, code_ir.SymbolOrFixtureCall) and isinstance(
        value.symbol_expression, code_ir.FixtureReference
      ):
        function = value.symbol_expression.name.value
        value.symbol_expression = code_ir.AttributeExpression(
          self_reference, function
        )
      return value

    for function in task.top_level_call.all_fixture_functions():
      function.parameters.insert(0, code_ir.Parameter(self_name))
    _rewrite_functions(task, rewrite)
    return task


@dataclasses.dataclass(frozen=True)
class PaxExpressionIsComplex:
  """Whether an expression gets a variable of its own."""

  base: Callable[[Any], bool]

  def __call__(self, node: Any) -> bool:
    return self.base(node)


@dataclasses.dataclass(frozen=True)
class ModelShardingDiff:
  """The changes that add the sharding to a model without it."""

  diff: diffing.Diff
  old: pax_fiddle.Config[Any]


def sharding_diff(
  experiment_cls: type[base_experiment.BaseExperiment],
  unshare_sharding_config: bool = True,
) -> ModelShardingDiff | None:
  """Returns the changes that add the sharding of an experiment's model.

  Args:
    experiment_cls: the experiment.
    unshare_sharding_config: whether each layer has its own annotations.

  Returns:
    None if the model has no sharding.
  """
  model = experiment_cls().task().model
  if unshare_sharding_config:
    model = sharding.unshare_sharding(model)
  old = sharding.remove_sharding(model, replace_with_default=True)
  diff = diffing.build_diff(old, model)
  return ModelShardingDiff(diff, old) if diff.changes else None


@dataclasses.dataclass(frozen=True)
class MakeShardingFiddler(CodegenPass):
  """Writes the function that adds the sharding to a model."""

  PASS_INPUT_KWARGS = ['model_sharding_diff']  # noqa: RUF012

  def __call__(
    self,
    task: PaxCodegenTask,
    model_sharding_diff: ModelShardingDiff | None = None,
  ) -> PaxCodegenTask:
    if model_sharding_diff is not None:
      task.sharding_diff_module = codegen_diff.fiddler_from_diff(
        model_sharding_diff.diff,
        old=model_sharding_diff.old,
        func_name='shard_model_config',
        param_name='model_config',
        import_manager=task.import_manager,
        variable_naming='short',
      )
    return task


def _rewrite_functions(
  task: PaxCodegenTask, fn: Callable[[Any, daglish.State], Any]
) -> None:
  for function in task.top_level_call.all_fixture_functions():
    function.replace_with(daglish.MemoizedTraversal.run(fn, function))


def _is_loading_rules(value: Any) -> bool:
  rules = tasks_lib.CheckpointLoadingRules
  if isinstance(value, fdl.Buildable):
    return fdl.get_callable(value) is rules
  return isinstance(value, rules)


def _with_experiment(rules: Any, experiment_cls: Any, imports: Any) -> Any:
  """Returns the rules with calls of methods of the experiment."""
  symbol = import_manager_wrapper.add(experiment_cls, imports)
  experiment = _call(symbol)
  calls = {
    'task_p': 'task',
    'input_specs_provider_p': 'get_input_specs_provider_params',
  }
  changes = {
    field: _call(code_ir.AttributeExpression(experiment, method))
    for field, method in calls.items()
  }
  if isinstance(rules, fdl.Buildable):
    return fdl.copy_with(rules, **changes)
  return rules._replace(**changes)


def _call(symbol: Any) -> code_ir.SymbolOrFixtureCall:
  return code_ir.SymbolOrFixtureCall(
    symbol_expression=symbol, positional_arg_expressions=[], arg_expressions={}
  )
