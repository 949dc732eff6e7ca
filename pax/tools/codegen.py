# SPDX-License-Identifier: Apache-2.0
"""Writes Python code that makes the configuration of an experiment.

pax codegen --exp=... --output=my_config.py
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from fiddle.experimental import visualize

from pax.parameterized_experiment import ParameterizedExperiment
from pax.runner import command_line
from pax.tools import declared, tool
from praxis import pax_fiddle
from praxis.pax_fiddle import codegen

Config = pax_fiddle.Config

_USAGE = """\
Writes Python code that makes the configuration of an experiment: classes and
constants are resolved, what is left is what runs, ready to be changed.

  pax codegen --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=my_config.py
  pax --fdl=config:my_config.experiment --job_log_dir=/tmp/pax/mine"""

FIXTURE = 'experiment'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(declared.ExperimentOptions):
  """The flags of this tool."""

  output: str = command_line.flag('-', 'Output', 'File for the code.')
  keep_defaults: bool = command_line.flag(
    False, 'What', 'Also write fields that are at their defaults.'
  )
  max_expression_complexity: int = command_line.flag(
    12, 'What', 'An expression with more parts than this gets a variable.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the code; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  found = declared.declare(options)
  code = codegen_experiment(
    parameterized(found.tree),
    keep_defaults=options.keep_defaults,
    max_expression_complexity=options.max_expression_complexity,
  )
  declared.write(options.output, code)
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


def codegen_experiment(
  config: Config[ParameterizedExperiment],
  *,
  keep_defaults: bool = False,
  max_expression_complexity: int | None = None,
) -> str:
  """Code with a function `experiment()` that returns `config`.

  Raises:
    ValueError: it holds a value that no code makes, such as a lambda.
  """
  if not keep_defaults:
    config = without_defaults(config)
  parts = {'task': config.task, 'model': config.task.model}
  return codegen.new_codegen(
    config,
    top_level_fixture_name=FIXTURE,
    sub_fixtures=parts,
    max_expression_complexity=max_expression_complexity,
  )


def without_defaults(config: Config[Any]) -> Config[Any]:
  """A copy in which only fields are set that differ from their defaults."""
  return visualize.with_defaults_trimmed(config, remove_deep_defaults=True)


if __name__ == '__main__':
  sys.exit(tool.run(main, sys.argv))
