# SPDX-License-Identifier: Apache-2.0
"""The one tree that a run is configured by, made from an experiment."""

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
  """What `--set path=value` reaches, and what `config.json` holds."""

  # The task: model, learner, how to train.
  task: Config[Any] | None = pax_fiddle.template_field(None)
  # The data to train on.
  train_input: Config[Any] | None = pax_fiddle.template_field(None)
  # The data to evaluate on.
  eval_inputs: list[Config[Any]] = pax_fiddle.template_field(None)
  # The data to decode.
  decode_inputs: list[Config[Any]] = pax_fiddle.template_field(None)


def from_experiment(
  experiment: base_experiment.BaseExperiment,
  settings: Sequence[overrides.Override] = (),
) -> Config[RunConfig]:
  """The tree of `experiment`, with the paths among `settings` assigned."""
  trains = bool(experiment.train_datasets())
  tree = Config(
    RunConfig,
    task=experiment.task(),
    train_input=experiment.training_dataset() if trains else None,
    eval_inputs=experiment.eval_datasets(),
    decode_inputs=experiment.decode_datasets(),
  )
  overrides.set_fields(tree, settings)
  return tree
