# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""ResNet50Pjit: schedule and batches, and declaration without data."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax.tasks.vision import input_generator
from pax.tasks.vision.params import imagenet_resnets

ResNet50Pjit = imagenet_resnets.ResNet50Pjit


def test_the_learning_rate_by_epochs():
  learner = ResNet50Pjit().task().train.learner
  optimizer = learner.optimizer
  schedule = optimizer.lr_schedule.Instantiate()
  rates = [
    optimizer.learning_rate * float(schedule.value_at(2502 * epoch))
    for epoch in (0, 2.5, 5, 29.9, 30, 60, 80, 90)
  ]
  wanted = [0, 0.1, 0.2, 0.2, 0.02, 0.002, 0.0002, 0]
  np.testing.assert_allclose(rates, wanted, rtol=1e-4)


def test_steps_follow_from_the_epochs():
  train = ResNet50Pjit().task().train
  assert train.num_train_steps == 90 * (1281167 // 512)
  assert train.eval_interval_steps == 1281167 // 512


@pytest.mark.parametrize('hosts', [1, 4])
def test_specs_are_those_of_the_batches(hosts, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: hosts)

  class Small(ResNet50Pjit):
    DATA_DIR = imagenet_resnets.SYNTHETIC
    IMAGE_SIZE = 8
    NUM_CLASSES = 5
    TRAIN_BATCH_SIZE = 12
    EVAL_BATCH_SIZE = 4

  provider = Small().get_input_specs_provider_params().Instantiate()
  train, validation = (p.Instantiate() for p in Small().datasets())
  shapes = lambda tree: {n: (x.shape, x.dtype) for n, x in tree.items()}
  assert shapes(provider.get_input_specs()) == shapes(train.get_next())
  assert train.batch_size == 12 // hosts
  assert validation.get_next().image.shape == (4 // hosts, 8, 8, 3)


def test_specs_of_the_paper():
  provider = ResNet50Pjit().get_input_specs_provider_params().Instantiate()
  specs = provider.get_input_specs()
  assert specs.image.shape == (512, 224, 224, 3)
  assert specs.label_probs.shape == (512, 1000)


def test_a_size_must_be_positive():
  provider = imagenet_resnets.ImageClassificationInputSpecsProvider.config(
    height=0
  ).Instantiate()
  with pytest.raises(ValueError, match='height .* must be positive, got 0'):
    provider.get_input_specs()


def test_the_inputs_read_imagenet():
  class Mine(ResNet50Pjit):
    DATA_DIR = '/data'

  train, validation = Mine().datasets()
  assert train.cls is input_generator.ImageNetTrain and train.is_training
  assert train.data_dir == validation.data_dir == '/data'
  assert validation.cls is input_generator.ImageNetValidation
  assert validation.reset_for_eval and not validation.is_training


def test_replicas_have_no_mesh():
  class Replicas(ResNet50Pjit):
    MESH_SHAPE = None

  task = Replicas().task()
  assert task.model.mesh_shape is None
  assert task.train.inputs_split_mapping is None
