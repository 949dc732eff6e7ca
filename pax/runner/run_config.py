# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run as one tree, made from an experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pax import base_experiment
from pax.runner import overrides
from praxis import pax_fiddle

Config = pax_fiddle.Config


@dataclasses.dataclass(kw_only=True)
class RunConfig:
  """The fields that `--set path=value` reaches and `config.json` holds."""

  # The task: model, learner, training.
  task: Config[Any] | None = pax_fiddle.template_field(None)
  # Training data.
  train_input: Config[Any] | None = pax_fiddle.template_field(None)
  # Data to evaluate.
  eval_inputs: list[Config[Any]] = pax_fiddle.template_field(None)
  # Data to decode.
  decode_inputs: list[Config[Any]] = pax_fiddle.template_field(None)


def from_experiment(
  experiment: base_experiment.BaseExperiment,
  changes: Sequence[overrides.Override] = (),
) -> Config[RunConfig]:
  """Returns the tree of `experiment` with the fields in `changes` assigned."""
  trains = bool(experiment.train_datasets())
  tree = Config(
    RunConfig,
    task=experiment.task(),
    train_input=experiment.training_dataset() if trains else None,
    eval_inputs=experiment.eval_datasets(),
    decode_inputs=experiment.decode_datasets(),
  )
  overrides.set_fields(tree, changes)
  return tree
