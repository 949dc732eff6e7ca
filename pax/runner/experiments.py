# SPDX-License-Identifier: Apache-2.0
"""Finds the experiment that a command line names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from absl import logging

from pax import base_experiment, experiment_registry
from pax.runner import fiddle_commands, overrides
from pax.runner.options import RunOptions, UsageError
from pax.tuning import space


def find(
  exp: str | None,
  settings: Sequence[overrides.Override],
  commands: Sequence[str] = (),
  sub_experiment: str | None = None,
) -> base_experiment.BaseExperiment:
  """The experiment called `exp`, else that which Fiddle `commands` make.

  Of an experiment that consists of several it is the `sub_experiment` of that
  id, if one is named. The constants among `settings` are set; one made of
  Configs has none.

  Raises:
    UsageError: no name is given.
    ValueError: there is no such experiment or constant.
  """
  if commands and not exp:
    made = fiddle_commands.experiment(commands)
    overrides.set_constants(type(made), settings)
    return made
  if not exp:
    raise UsageError(
      'which experiment? e.g. --exp=tasks.lm.params.quickstart.TinyLm'
    )
  found = experiment_registry.get_experiment(exp)
  experiment = overrides.set_constants(found, settings)
  if sub_experiment:
    experiment = _part(experiment, sub_experiment, settings)
  if open_points := space.search_points(experiment):
    raise UsageError(
      f'{", ".join(open_points)} of {experiment.__name__} are search points;'
      f' --study=local searches them, --set {next(iter(open_points))}=...'
      ' chooses'
    )
  return experiment()


def _part(
  experiment: type, name: str, settings: Sequence[overrides.Override]
) -> type:
  """One of the experiments that one consists of, with the same constants."""
  parts = experiment.sub_experiments()
  if name not in parts:
    raise UsageError(
      f'--sub_experiment={name} is none of {", ".join(parts)}, of which'
      f' {experiment.__name__} consists'
    )
  part = parts[name]
  if issubclass(part, experiment):
    return part
  known = overrides.constants_of(part)
  return overrides.set_constants(part, [s for s in settings if s.name in known])


def commands_of(options: RunOptions) -> list[str]:
  """The commands of --fdl, with those by older names."""
  configs = {
    'config': [options.fdl_config],
    'config_file': [options.fdl_config_file],
  }
  changes = {
    'fiddler': options.fiddler,
    'set': options.fdl_set,
    'tag': options.fdl_tags_set,
  }
  return [*_older(configs), *options.fdl, *_older(changes)]


def _older(by_kind: Mapping[str, Sequence[str | None]]) -> list[str]:
  """What flags older than --fdl say, as commands of it."""
  found = [
    f'{kind}:{value}'
    for kind, values in by_kind.items()
    for value in values
    if value
  ]
  for command in found:
    logging.warning('A flag is deprecated; use --fdl=%s', command)
  return found
