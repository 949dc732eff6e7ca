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
from pax.runner import command_line
from pax.tools import abstract_experiment, tool
from pax.tools.fiddler import (
  codegen,
  codegen_highlevel_parameterization,
  codegen_sharding,
)
from praxis import pax_fiddle

Config = pax_fiddle.Config

_USAGE = """\
Writes Python code that makes the configuration of an experiment: classes and
constants are resolved, what is left is what runs, ready to be changed.

  pax codegen --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=my_config.py
  pax --fdl=config:my_config.experiment --job_log_dir=/tmp/pax/mine"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  output: str = command_line.flag('-', 'Output', 'File for the code.')
  keep_defaults: bool = command_line.flag(
    False, 'What', 'Also write fields that are at their defaults.'
  )
  sharding_apart: bool = command_line.flag(
    False, 'What', 'Say how arrays are split in a function of its own.'
  )
  keep_constants: bool = command_line.flag(
    False,
    'What',
    'Begin with the constants of the experiment and use them below; of --set'
    ' only constants count then.',
  )
  max_expression_complexity: int = command_line.flag(
    12, 'What', 'An expression with more parts than this gets a variable.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the code; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  found = abstract_experiment.declare(options)
  if options.keep_constants:
    code = codegen_highlevel_parameterization.codegen_with_constants(
      type(found.experiment),
      max_expression_complexity=options.max_expression_complexity,
      has_input_specs_provider=False,
    )
    abstract_experiment.write(options.output, code)
    return 0
  normalizer = codegen.normalizer(remove_defaults=not options.keep_defaults)
  config = normalizer(parameterized(found.tree))
  most = options.max_expression_complexity
  if options.sharding_apart:
    code = codegen_sharding.codegen_with_sharding_apart(config, most)
  else:
    code = codegen.codegen_experiment(config, most)
  abstract_experiment.write(options.output, code)
  return 0


def parameterized(tree: Config[Any]) -> Config[ParameterizedExperiment]:
  """The Config of an experiment that declares what is in the tree."""
  train_datasets = [tree.train_input] if tree.train_input else []
  return Config(
    ParameterizedExperiment,
    task=tree.task,
    train_datasets=train_datasets,
    eval_datasets=list(tree.eval_inputs),
    decode_datasets=list(tree.decode_inputs),
  )


if __name__ == '__main__':
  tool.console(main)
