# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""An experiment that is given what others declare."""

from __future__ import annotations

import pytest

from pax.parameterized_experiment import ParameterizedExperiment
from praxis import base_input, pax_fiddle


def dataset(name: str, is_training: bool):
  return pax_fiddle.Config(
    base_input.BaseInput, name=name, is_training=is_training
  )


def test_it_returns_what_it_was_given():
  train, held_out, decoded = (
    dataset('a', True),
    dataset('b', False),
    dataset('c', False),
  )
  experiment = ParameterizedExperiment(
    task='task',
    training_dataset=train,
    eval_datasets=[held_out],
    decoder_datasets=[decoded],
    input_specs_provider='provider',
  )
  assert experiment.task() == 'task'
  assert experiment.training_dataset() is train
  assert experiment.datasets() == [train, held_out]
  assert experiment.eval_datasets() == [held_out]
  assert experiment.decode_datasets() == [decoded]
  assert experiment.get_input_specs_provider_params() == 'provider'


def test_shapes_are_asked_of_the_training_dataset():
  experiment = ParameterizedExperiment(
    task=None, train_datasets=[dataset('a', True)]
  )
  assert experiment.get_input_specs_provider_params().input_p.name == 'a'


@pytest.mark.parametrize(
  ('use', 'is_training'), [('train', False), ('eval', True), ('decode', True)]
)
def test_a_dataset_in_the_wrong_place(use, is_training):
  wrong = {f'{use}_datasets': [dataset('x', is_training)]}
  with pytest.raises(ValueError, match="dataset 'x' must be"):
    ParameterizedExperiment(task=None, **wrong)


def test_configs_stay_configs_when_it_is_built():
  config = pax_fiddle.Config(
    ParameterizedExperiment,
    task=pax_fiddle.Config(dict, a=1),
    train_datasets=[dataset('a', True)],
  )
  experiment = config.Instantiate()
  assert experiment.task() == config.task
  assert experiment.train_datasets() == config.train_datasets
