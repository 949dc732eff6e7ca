# SPDX-License-Identifier: Apache-2.0
"""Prints the differences between two experiments.

pax diff_configs lm_cloud.LmCloudSpmd2B lm_cloud.LmCloudSpmd32B
pax diff_configs lm_cloud.LmCloudSpmd2B --set NUM_LAYERS=4
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence

from pax.runner import artifacts, command_line
from pax.tools import abstract_experiment, tool

_USAGE = """\
Prints the differences between two experiments, or the effect of --set on one.

  pax diff_configs lm_cloud.LmCloudSpmd2B lm_cloud.LmCloudSpmd32B
  pax diff_configs lm_cloud.LmCloudSpmd2B --set NUM_LAYERS=4"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  experiments: tuple[str, ...] = command_line.words('EXPERIMENT [EXPERIMENT]')
  set: tuple[str, ...] = command_line.flag(
    (), 'What', 'Set a constant or a field of the second one. Repeatable.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Prints the differences; returns the exit code.

  Raises:
    UsageError: not two experiments, or one and --set.
  """
  options = command_line.parse(Options, argv, _USAGE)
  names = options.experiments
  if len(names) == 1 and options.set:
    names *= 2
  if len(names) != 2:
    raise command_line.UsageError(
      f'give two experiments, or one and --set, got {len(names)} and'
      f' {len(options.set)} of --set'
    )
  experiments = abstract_experiment.declare_all(
    [
      abstract_experiment.ExperimentOptions(
        exp=name, set=changes
      ).expand_files()
      for name, changes in zip(names, ((), options.set), strict=True)
    ]
  )
  lines = list(differences(*map(_field_texts, experiments)))
  print('\n'.join(lines) if lines else 'no difference')
  return 0


def differences(first: dict[str, str], second: dict[str, str]) -> Iterator[str]:
  """Yields lines such as `a.b : 1 -> 2`, `- a.b : 1`, `+ a.b : 2`, by path."""
  for path in sorted(first.keys() | second.keys()):
    if path not in second:
      yield f'- {path} : {first[path]}'
    elif path not in first:
      yield f'+ {path} : {second[path]}'
    elif first[path] != second[path]:
      yield f'  {path} : {first[path]} -> {second[path]}'


def _field_texts(
  experiment: abstract_experiment.AbstractExperiment,
) -> dict[str, str]:
  """The text of every field by its path."""
  text = artifacts.to_text(experiment.tree)
  pairs = (line.partition(' : ') for line in text.splitlines())
  return {path: value for path, colon, value in pairs if colon}


if __name__ == '__main__':
  tool.run_console(main)
