# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: env=PAX_CHECK_SHAPES=0
"""What the classifiers of images and of points resolve to, and their sizes.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what they resolve to now
"""

from __future__ import annotations

import pytest

from pax import experiment_registry
from pax.tasks.test import synthetic
from pax.tasks.vision.params import imagenet_resnets, mnist
from tests.golden import experiment_texts

_MODULES = (imagenet_resnets, mnist, synthetic)
# Convolutions with biases, 3136 = 7 * 7 * 64 features, 256 neurons.
_MNIST = (9 + 1) * 32 + (9 * 32 + 1) * 64 + (3136 + 1) * 256 + (256 + 1) * 10
_POINTS = (16 + 1) * 32 + (32 + 1) * 8
_PARAMETERS = {
  # As torchvision's resnet50.
  imagenet_resnets.ResNet50Pjit: 25_557_032,
  mnist.MnistExperiment: _MNIST,
  synthetic.SyntheticClassifier: _POINTS,
  synthetic.SharedNameExperiment: _POINTS,
}


@pytest.fixture(scope='module')
def made():
  return experiment_texts.texts(list(_PARAMETERS))


@pytest.fixture(scope='module')
def golden(made):
  return experiment_texts.golden('vision', made)


def test_these_are_all():
  names = tuple(f'{module.__name__}.' for module in _MODULES)
  registered = {
    experiment
    for name, experiment in experiment_registry.get_all().items()
    if name.startswith(names)
  }
  assert registered == set(_PARAMETERS)


@pytest.mark.parametrize('experiment', _PARAMETERS)
def test_resolves_to_the_golden_text(experiment, made, golden):
  name = experiment.__name__
  assert name in golden, f'run UPDATE_GOLDEN=1 pytest {__file__}'
  assert made[name] == golden[name]


@pytest.mark.parametrize('experiment', _PARAMETERS)
def test_size_is_that_of_its_numbers(experiment):
  found = experiment_texts.resolve(experiment).num_params
  assert found == _PARAMETERS[experiment]
