# SPDX-License-Identifier: Apache-2.0
"""Writes the configuration of an experiment as text.

pax dump_hparams --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from pax import experiment_vars_summary
from pax.runner import artifacts, command_line
from pax.tools import abstract_experiment, tool
from praxis import base_hyperparams

_USAGE = """\
Writes the configuration of an experiment as text: its inputs, then its task.

  pax dump_hparams --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  params_ofile: str = command_line.flag(
    '/dev/stdout', 'Output', 'File for the configuration.'
  )
  post_init_params_ofile: str | None = command_line.flag(
    None,
    'Output',
    'File for the model with inherited fields, and its variables.',
  )
  cls_vars_ofile: str | None = command_line.flag(
    None, 'Output', 'File for the constants of the classes.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the files that the command line names; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  experiment = abstract_experiment.declare(options)
  abstract_experiment.write(options.params_ofile, params_text(experiment))
  if options.post_init_params_ofile:
    abstract_experiment.write(
      options.post_init_params_ofile, post_init_text(experiment)
    )
  if options.cls_vars_ofile:
    text = experiment_vars_summary.get_cls_vars_summary(
      type(experiment.experiment)
    )
    abstract_experiment.write(options.cls_vars_ofile, text)
  return 0


def params_text(experiment: abstract_experiment.AbstractExperiment) -> str:
  """Returns all inputs and the task, one field per line."""
  return artifacts.config_text(experiment.tree)


def post_init_text(experiment: abstract_experiment.AbstractExperiment) -> str:
  """Returns the model with inherited fields, then its variables."""
  partitioner = experiment.partitioner()
  model = artifacts.post_init_text(partitioner.task, partitioner.input_spec)
  variables = base_hyperparams.nested_struct_to_text(
    partitioner.var_weight_hparams
  )
  return f'{model}\n{variables}'


if __name__ == '__main__':
  tool.run_console(main)
