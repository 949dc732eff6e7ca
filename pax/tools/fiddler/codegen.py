# SPDX-License-Identifier: Apache-2.0
"""Code that makes the Config of an experiment."""

from __future__ import annotations

from typing import Any

from pax import base_experiment
from pax.parameterized_experiment import ParameterizedExperiment
from pax.tools.fiddler import (
  code_format,
  config_normalization,
  make_parameterized_experiment,
)
from praxis import pax_fiddle
from praxis.pax_fiddle import config_codegen

Config = pax_fiddle.Config

# The name of the function that is written.
FIXTURE = 'experiment'


def codegen_baseline_from_legacy(
  experiment_cls: type[base_experiment.BaseExperiment],
  *,
  has_train_dataset: bool = True,
  has_input_specs_provider: bool = True,
  **options: Any,
) -> str:
  """Returns code with a function that makes what an experiment declares.

  Args:
    experiment_cls: the experiment.
    has_train_dataset: False does not ask for training datasets.
    has_input_specs_provider: False does not ask for the shapes of a batch.
    **options: fields of ConfigNormalizer, but for those of NestedMaps and
      dataclasses, which code can make.
  """
  config = make_parameterized_experiment.from_legacy(
    experiment_cls,
    normalizer=normalizer(**options),
    has_train_dataset=has_train_dataset,
    has_input_specs_provider=has_input_specs_provider,
  )
  return codegen_experiment(config)


def normalizer(**options: Any) -> config_normalization.ConfigNormalizer:
  """Returns what makes a Config simpler before it is written as code."""
  return config_normalization.ConfigNormalizer(
    convert_dataclasses=False, wrap_nested_maps=False, **options
  )


def codegen_experiment(
  config: Config[ParameterizedExperiment],
  max_expression_complexity: int | None = None,
  name: str = FIXTURE,
) -> str:
  """Returns code with a function of this name that returns `config`.

  Task and model have functions of their own. An expression with more parts
  than `max_expression_complexity` gets a variable.

  Raises:
    ValueError: it holds a value that no code makes, such as a lambda.
  """
  code = config_codegen.new_codegen(
    config,
    top_level_fixture_name=name,
    sub_fixtures={'task': config.task, 'model': config.task.model},
    max_expression_complexity=max_expression_complexity,
  )
  return code_format.format_code(code)
