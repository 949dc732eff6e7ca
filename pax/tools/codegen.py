# SPDX-License-Identifier: Apache-2.0
"""Writes Python code that makes the configuration of an experiment.

pax codegen --exp=... --output=my_config.py
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from pax.parameterized_experiment import ParameterizedExperiment
from pax.runner import command_line, overrides
from pax.tools import abstract_experiment, tool
from pax.tools.fiddler import codegen
from praxis import pax_fiddle, value_domains

Config = pax_fiddle.Config

_USAGE = """\
Writes Python code that makes the configuration of an experiment. Classes and
constants are resolved; the code holds the values that run, for you to edit.

  pax codegen --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=my_config.py
  pax --fdl=config:my_config.experiment --job_log_dir=/tmp/pax/mine"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  output: str = command_line.flag('-', 'Output', 'File of the code.')
  keep_defaults: bool = command_line.flag(
    False, 'What', 'Also write fields that are at their defaults.'
  )
  sharding_apart: bool = command_line.flag(
    False, 'What', 'Write sharding annotations in a function of their own.'
  )
  keep_constants: bool = command_line.flag(
    False,
    'What',
    'Write the constants of the experiment first and use them by name. Only'
    ' constants can be --set then.',
  )
  max_expression_complexity: int = command_line.flag(
    12,
    'What',
    'Assign expressions with more parts than this to variables.',
    domain=value_domains.interval(ge=1),
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the code; returns the exit code.

  Raises:
    UsageError: --keep_constants with flags that it would leave out.
  """
  options = command_line.parse(Options, argv, _USAGE)
  if options.keep_constants:
    _check_constants_only(options)
  experiment = abstract_experiment.declare(options)
  abstract_experiment.write(options.output, _code(options, experiment))
  return 0


def parameterized(tree: Config[Any]) -> Config[ParameterizedExperiment]:
  """Returns the Config of an experiment with the parts of a run's tree."""
  return Config(
    ParameterizedExperiment,
    task=tree.task,
    train_datasets=[tree.train_input] if tree.train_input else [],
    eval_datasets=list(tree.eval_inputs),
    decode_datasets=list(tree.decode_inputs),
  )


def _check_constants_only(options: Options) -> None:
  """Checks that the experiment with its constants is all that is wanted.

  Raises:
    UsageError: A flag changes more.
  """
  given = [
    f'--{name}'
    for name in ('fdl', 'keep_defaults', 'sharding_apart')
    if getattr(options, name)
  ]
  given += [
    f'--set {change.name}'
    for change in overrides.parse(options.set)
    if not change.is_constant
  ]
  if given:
    raise command_line.UsageError(
      f'{given[0]} has no effect with --keep_constants, whose code has the'
      ' constants of the experiment; leave one of them out, or edit the code'
    )


def _code(
  options: Options, experiment: abstract_experiment.AbstractExperiment
) -> str:
  if options.keep_constants:
    return codegen.codegen_with_constants(
      type(experiment.experiment),
      max_expression_complexity=options.max_expression_complexity,
      has_input_specs_provider=False,
    )
  normalizer = codegen.normalizer(remove_defaults=not options.keep_defaults)
  write = (
    codegen.codegen_with_sharding_apart
    if options.sharding_apart
    else codegen.codegen_experiment
  )
  config = normalizer(parameterized(experiment.tree))
  return write(config, options.max_expression_complexity)


if __name__ == '__main__':
  tool.run_console(main)
