# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run as one tree, made from an experiment."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from fiddle import daglish

from pax import base_experiment, constant_domains
from pax.runner import overrides
from praxis import pax_fiddle, value_domains
from praxis.pax_fiddle import build_errors

Config = pax_fiddle.Config


@dataclasses.dataclass(kw_only=True)
class RunConfig:
  """The fields that `--set path=value` reaches and `config.json` holds."""

  # The task: model, learner, training.
  task: Config[Any] | None = pax_fiddle.template_field(None)
  # Training data.
  train_input: Config[Any] | None = pax_fiddle.template_field(None)
  # Data to evaluate.
  eval_inputs: list[Config[Any]] = pax_fiddle.template_field(None)
  # Data to decode.
  decode_inputs: list[Config[Any]] = pax_fiddle.template_field(None)


def from_experiment(
  experiment: base_experiment.BaseExperiment,
  changes: Sequence[overrides.Override] = (),
) -> Config[RunConfig]:
  """Returns the tree of `experiment` with the fields in `changes` assigned.

  Raises:
    ValueError: a path does not exist, or a value is not valid.
  """
  tree = of_task(experiment)
  with _locate_errors(experiment, 'datasets'):
    trains = bool(experiment.train_datasets())
    tree.train_input = experiment.training_dataset() if trains else None
    tree.eval_inputs = experiment.eval_datasets()
  with _locate_errors(experiment, 'decode_datasets'):
    tree.decode_inputs = experiment.decode_datasets()
  overrides.set_fields(tree, changes)
  _check_task(tree.task, 'task must be')
  check_domains(tree)
  _check_batch_counts(tree, changes)
  return tree


def of_task(
  experiment: base_experiment.BaseExperiment,
  changes: Sequence[overrides.Override] = (),
) -> Config[RunConfig]:
  """Returns the tree without inputs, which depend on the number of devices.

  Raises:
    ValueError: the experiment returns no Config, or a value is not valid.
  """
  with _locate_errors(experiment, 'task'):
    task = experiment.task()
  _check_task(task, f'{type(experiment).__name__}.task() must return')
  tree = Config(RunConfig, task=task)
  if changes:
    overrides.set_fields(tree, changes)
    check_domains(tree)
  return tree


def _check_batch_counts(
  tree: Config[RunConfig], changes: Sequence[overrides.Override]
) -> None:
  """Checks that numbers of batches by --set have an effect."""
  names = {change.name for change in changes}
  for group in ('eval_inputs', 'decode_inputs'):
    for i, input_p in enumerate(getattr(tree, group)):
      path = f'{group}[{i}]'
      name = f'{path}.eval_loop_num_batches'
      if name not in names or not input_p.reset_for_eval:
        continue
      if (count := input_p.eval_loop_num_batches) not in (None, -1):
        raise ValueError(
          f'{name} must be None with {path}.reset_for_eval=True, which'
          f' evaluates all batches, got {count}; with --set'
          f' {path}.reset_for_eval=False each evaluation takes the next {count}'
        )


def check_domains(tree: Config[RunConfig]) -> None:
  """Checks the fields that are set and declare a domain.

  Raises:
    ValueError: a value is not in the domain of its field, or the lengths of the
      mesh shapes and axis names differ.
  """
  for config, path in daglish.iterate(tree):
    if isinstance(config, pax_fiddle.Buildable):
      _check_fields(config, daglish.path_str(path).removeprefix('.'))
  model = getattr(tree.task, 'model', None)
  if isinstance(model, Config) and hasattr(model, 'ici_mesh_shape'):
    _check_mesh(model)


def _check_task(task: Any, subject: str) -> None:
  if not isinstance(task, pax_fiddle.Buildable):
    got = 'None' if task is None else f'a {type(task).__name__}'
    raise ValueError(
      f'{subject} the Config of a task, got {got}; end task() with'
      ' `return task_p`, and do not instantiate it'
    )


@contextlib.contextmanager
def _locate_errors(
  experiment: base_experiment.BaseExperiment, method: str
) -> Iterator[None]:
  """Attaches the method to errors whose messages are not for users."""
  try:
    yield
  except Exception as e:
    if not isinstance(e, ValueError) and not build_errors.location_of(e):
      cls = type(experiment)
      build_errors.attach(e, build_errors.Location(cls, f'.{method}()', cls))
    raise


def _check_mesh(model: Config[Any]) -> None:
  domain = constant_domains.DOMAINS['ICI_MESH_SHAPE']
  for name in ('ici_mesh_shape', 'dcn_mesh_shape'):
    value = getattr(model, name)
    if not domain.contains(value):
      raise ValueError(
        f'task.model.{name} must be {domain.text}, got {value!r}'
      )
  # Raises if the lengths differ.
  _ = model.mesh_shape


def _check_fields(config: pax_fiddle.Buildable, path: str) -> None:
  for field in pax_fiddle.fields_of(pax_fiddle.get_callable(config)):
    domain = field.metadata.get(value_domains.KEY)
    if domain is None or field.name not in config.__arguments__:
      continue
    value = config.__arguments__[field.name]
    if not value_domains.is_valid(field, value):
      name = f'{path}.{field.name}'
      raise ValueError(
        f'{name} must be {domain.text}, got {value!r}'
        + _hint(name, field, domain, value)
      )


def _hint(
  name: str,
  field: dataclasses.Field[Any],
  domain: value_domains.Domain,
  value: Any,
) -> str:
  example = field.default
  if example is None or not domain.contains(example):
    example = domain.example(value)
  return (
    ''
    if example is None
    else f'; e.g. --set {value_domains.setting(name, example)}'
  )
