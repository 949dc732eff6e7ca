# SPDX-License-Identifier: Apache-2.0
"""Writes shapes and dtypes of the batches of an experiment.

pax dump_input_specs --exp=tasks.lm.params.lm_cloud.LmCloudSpmdTest
"""

from __future__ import annotations

import dataclasses
import pprint
import sys
from collections.abc import Sequence
from typing import Any

import jax

from pax import base_experiment
from pax.runner import command_line
from pax.tools import abstract_experiment, tool
from praxis import base_input, pytypes

NestedMap = pytypes.NestedMap
Specs = tuple[NestedMap | None, NestedMap | str | None]

_USAGE = """\
Writes shapes and dtypes of the batches of an experiment: those of its input
specs provider, and those of its training input.

  pax dump_input_specs --exp=tasks.lm.params.lm_cloud.LmCloudSpmdTest"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  output_filename: str = command_line.flag(
    '/dev/stdout', 'Output', 'File for the shapes.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the shapes; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  experiment = abstract_experiment.declare(options)
  specs = _provided(experiment.experiment), _of_data(experiment)
  abstract_experiment.write(
    options.output_filename, specs_to_string(experiment.name, specs)
  )
  return 0


def extract_input_specs(
  experiment_config: base_experiment.BaseExperiment,
) -> Specs:
  """Returns the specs (of the provider, of the training input).

  The first is None if the provider reads the training input, the second if
  there is no training input.
  """
  inputs = experiment_config.train_datasets()
  batch = inputs[0].Instantiate().get_next_padded() if inputs else None
  from_input = None if batch is None else jax.tree.map(_spec, batch)
  return _provided(experiment_config), from_input


def specs_to_string(experiment_name: str, specs: Specs) -> str:
  """Returns the specs as text."""
  provided, from_input = specs
  return '\n'.join([
    experiment_name,
    'From InputSpecsProvider:',
    pprint.pformat(provided, indent=2),
    'From training input pipeline:',
    pprint.pformat(from_input, indent=2),
    '',
  ])  # fmt: skip


def _of_data(
  experiment: abstract_experiment.AbstractExperiment,
) -> NestedMap | str:
  """The specs of the training input, or the error if its data are missing."""
  try:
    return experiment.spec_of_data()
  except ValueError as e:
    if _provided(experiment.experiment) is None:
      raise
    return f'unknown: {e}'


def _provided(experiment: base_experiment.BaseExperiment) -> NestedMap | None:
  provider = experiment.get_input_specs_provider_params().Instantiate()
  if isinstance(provider, base_input.DatasetInputSpecsProvider):
    return None
  return provider.get_input_specs()


def _spec(x: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


if __name__ == '__main__':
  tool.run_console(main)
