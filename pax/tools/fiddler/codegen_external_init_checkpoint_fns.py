# SPDX-License-Identifier: Apache-2.0
"""Code that names the experiments that checkpoints to start from are of.

`task.train.init_from_checkpoint_rules` may hold the whole task of another
experiment. Written out it would be longer than the experiment itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax import base_experiment
from praxis import pax_fiddle
from praxis.pax_fiddle import config_codegen

Config = pax_fiddle.Config
Experiments = Mapping[str, type[base_experiment.BaseExperiment]]


def task_of(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> Config[Any]:
  """Returns what the experiment trains."""
  return experiment_cls().task()


def input_specs_provider_of(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> Config[Any]:
  """Returns what tells the shapes of the experiment's batches."""
  return experiment_cls().get_input_specs_provider_params()


def name_init_checkpoint_experiments(
  task: Config[Any], experiments: Experiments, *, strict: bool = True
) -> Config[Any]:
  """Returns a copy of a task whose rules hold names of experiments.

  Args:
    task: the Config of the task.
    experiments: the experiment of each checkpoint directory.
    strict: whether each directory must have one.

  Raises:
    ValueError: one has none.
  """
  rules = task.train.init_from_checkpoint_rules
  if not isinstance(rules, Mapping):
    return task
  if strict and (
    missing := [path for path in rules if path not in experiments]
  ):
    raise ValueError(
      f'init_from_checkpoint_rules has {missing[0]!r}, and experiments must say'
      f' what experiment that is of; got {", ".join(experiments) or "none"}'
    )
  named = task.clone()
  named.train.init_from_checkpoint_rules = {
    path: _named(one, experiments.get(path)) for path, one in rules.items()
  }
  return named


def _named(
  rules: Any, experiment_cls: type[base_experiment.BaseExperiment] | None
) -> Any:
  if experiment_cls is None:
    return rules
  made_by = {
    'task_p': task_of,
    'input_specs_provider_p': input_specs_provider_of,
  }
  return rules._replace(
    **{
      field: config_codegen.Call(function, experiment_cls)
      for field, function in made_by.items()
      if getattr(rules, field) is not None
    }
  )
