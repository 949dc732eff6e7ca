# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
"""What the classifiers of images and of points resolve to, and their sizes.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what they resolve to now
"""

from __future__ import annotations

import pytest

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
_FAMILY = experiment_texts.Family('vision', _PARAMETERS)


def test_these_are_all():
  names = {experiment.__name__ for experiment in _PARAMETERS}
  assert experiment_texts.registered(*_MODULES) == names


@pytest.mark.parametrize('name', [one.__name__ for one in _PARAMETERS])
def test_resolves_to_the_golden_text(name):
  assert _FAMILY.made(name) == _FAMILY.accepted(name)


@pytest.mark.parametrize('experiment', _PARAMETERS)
def test_size_is_that_of_its_numbers(experiment):
  found = experiment_texts.resolve(experiment).num_params
  assert found == _PARAMETERS[experiment]
