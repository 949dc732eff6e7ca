# SPDX-License-Identifier: Apache-2.0
"""Finds the experiment that a command line names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from absl import logging

from pax import base_experiment, constant_domains, experiment_registry
from pax.runner import fiddle_commands, overrides
from pax.runner.options import RunOptions, UsageError
from pax.tuning import space


def find(
  exp: str | None,
  changes: Sequence[overrides.Override],
  commands: Sequence[str] = (),
  sub_experiment: str | None = None,
  trust_foreign_files: bool = False,
) -> base_experiment.BaseExperiment:
  """Returns the experiment of `--exp`, or else that of `--fdl`.

  Args:
    exp: name of a registered experiment.
    changes: its constants to set; fields of the configuration are ignored.
    commands: those of Fiddle, which make an experiment without constants.
    sub_experiment: id of one of the experiment's sub-experiments to return.
    trust_foreign_files: whether commands may read files that other users can
      write.

  Raises:
    UsageError: no experiment is named, or a constant is a search point.
    ValueError: there is no such experiment or constant, or it is abstract.
  """
  if commands and not exp:
    experiment = fiddle_commands.experiment(
      commands, trust_foreign_files=trust_foreign_files
    )
    overrides.set_constants(type(experiment), changes)
    return experiment
  if not exp:
    raise UsageError(
      'which experiment? e.g. --exp=tasks.lm.params.quickstart.TinyLm'
    )
  cls = overrides.set_constants(
    experiment_registry.get_experiment(exp), changes
  )
  if sub_experiment:
    cls = _sub_experiment(cls, sub_experiment, changes)
  if search_points := space.search_points(cls):
    raise UsageError(
      f'{", ".join(search_points)} of {cls.__name__} are search points;'
      f' search them with --study=local, or choose with --set'
      f' {next(iter(search_points))}=...'
    )
  if missing := sorted(getattr(cls, '__abstractmethods__', ())):
    raise ValueError(
      f'{cls.__name__} must define {" and ".join(f"{x}()" for x in missing)},'
      ' got none; inherit a class that does, such as SyntheticDataset of'
      ' tasks.lm.params.lm_cloud for datasets() with TRAIN_DATA'
    )
  return cls()


def validate(experiment: base_experiment.BaseExperiment) -> None:
  """Checks the constants of an experiment.

  Raises:
    ValueError: a constant is not in its domain, or constants are inconsistent.
  """
  constant_domains.check(experiment)
  experiment.validate()


def fiddle_commands_of(options: RunOptions) -> list[str]:
  """Returns the commands of --fdl and of the older flags for the same."""
  configs = {
    'config': [options.fdl_config],
    'config_file': [options.fdl_config_file],
  }
  changes = {
    'fiddler': options.fiddler,
    'set': options.fdl_set,
    'tag': options.fdl_tags_set,
  }
  return [
    *_deprecated_commands(configs),
    *options.fdl,
    *_deprecated_commands(changes),
  ]


def _sub_experiment(
  cls: type, name: str, changes: Sequence[overrides.Override]
) -> type:
  """The class of a sub-experiment, with the same constants set."""
  sub_experiments = cls().sub_experiments()
  if name not in sub_experiments:
    if list(sub_experiments) == ['']:
      raise UsageError(
        f'--sub_experiment={name}: {cls.__name__} has no sub-experiments; leave'
        ' out the flag'
      )
    raise UsageError(
      f'--sub_experiment={name} is none of {", ".join(sub_experiments)}, the'
      f' sub-experiments of {cls.__name__}'
    )
  sub_cls = sub_experiments[name]
  if issubclass(sub_cls, cls):
    return sub_cls
  constants = overrides.constants_of(sub_cls)
  return overrides.set_constants(
    sub_cls, [change for change in changes if change.name in constants]
  )


def _deprecated_commands(
  by_kind: Mapping[str, Sequence[str | None]],
) -> list[str]:
  """The values of deprecated flags as commands of --fdl."""
  commands = [
    f'{kind}:{value}'
    for kind, values in by_kind.items()
    for value in values
    if value
  ]
  for command in commands:
    logging.warning('A flag is deprecated; use --fdl=%s', command)
  return commands
