# SPDX-License-Identifier: Apache-2.0
"""Finds the experiment that a command line names."""

from __future__ import annotations

from collections.abc import Sequence

from pax import base_experiment, experiment_registry
from pax.runner import overrides
from pax.runner.command_line import UsageError


def find(
  exp: str | None, settings: Sequence[overrides.Override]
) -> base_experiment.BaseExperiment:
  """The experiment called `exp`, with the constants among `settings`.

  Raises:
    UsageError: no name is given.
    ValueError: there is no such experiment or constant.
  """
  if not exp:
    raise UsageError(
      'which experiment? e.g. --exp=tasks.lm.params.quickstart.TinyLm'
    )
  found = experiment_registry.get_experiment(exp)
  return overrides.set_constants(found, settings)()
