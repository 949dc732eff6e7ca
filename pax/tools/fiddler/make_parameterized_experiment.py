# SPDX-License-Identifier: Apache-2.0
"""An experiment of constants as one of Configs."""

from __future__ import annotations

from pax import base_experiment
from pax.parameterized_experiment import ParameterizedExperiment
from pax.tools.fiddler import config_normalization
from praxis import pax_fiddle

Config = pax_fiddle.Config


def from_legacy(
  experiment_cls: type[base_experiment.BaseExperiment],
  *,
  normalizer: config_normalization.ConfigNormalizer
  | None = config_normalization.ConfigNormalizer(),  # noqa: B008 (frozen)
  has_train_dataset: bool = True,
  has_input_specs_provider: bool = True,
) -> Config[ParameterizedExperiment]:
  """Returns the Config of an experiment that declares the same.

  Args:
    experiment_cls: the experiment.
    normalizer: makes the Config simpler; None leaves it.
    has_train_dataset: False does not ask for training datasets.
    has_input_specs_provider: False does not ask for the shapes of a batch.
  """
  experiment = experiment_cls()
  config = Config(
    ParameterizedExperiment,
    task=experiment.task(),
    eval_datasets=experiment.eval_datasets(),
  )
  if has_train_dataset:
    config.train_datasets = experiment.train_datasets()
  if has_input_specs_provider:
    config.input_specs_provider = experiment.get_input_specs_provider_params()
  if decoded := list(experiment.decode_datasets()):
    config.decode_datasets = decoded
  return normalizer(config) if normalizer else config
