# SPDX-License-Identifier: Apache-2.0
"""A small classifier of generated points, for tests and first runs.

pax --exp=tasks.test.synthetic.SyntheticClassifier --job_log_dir=/tmp/pax/points
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float, Int64

from pax import (
  base_experiment,
  experiment_registry,
  learners,
  tasks_lib,
)
from pax.inputs import batch_specs
from pax.inputs.rows import indexed
from praxis import base_input, optimizers, pax_fiddle, py_utils, schedules
from praxis.layers import embedding_softmax, linears, models

Config = pax_fiddle.Config
NestedMap = py_utils.NestedMap

# Seed of the centers, which training and evaluation share, and of the points.
_SEED = 1234


class ClusteredPoints(indexed.IndexedInput):
  """Gaussian clusters of points, one for each class, with some overlap.

  A batch has `inputs` [B, dims], `label_probs` [B, classes] and `weight` [B],
  all float32.
  """

  num_classes: int = 8
  # Dimension of a point.
  num_dims: int = 16
  # Number of points in an epoch.
  num_points: int = 4096
  # Root mean square distance of a point from its center; that of the centers
  # from 0 is 1.
  spread: float = 0.5

  @property
  def num_examples(self) -> int:
    return self.num_points

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    labels = indices % self.num_classes
    return NestedMap(
      inputs=self._points[indices],
      label_probs=np.eye(self.num_classes, dtype=np.float32)[labels],
      weight=np.ones(len(indices), np.float32),
    )

  @functools.cached_property
  def _points(self) -> Float[np.ndarray, 'num_points num_dims']:
    shape = (self.num_classes, self.num_dims)
    centers = np.random.default_rng(_SEED).normal(size=shape)
    centers /= np.sqrt(self.num_dims)
    random = np.random.default_rng((_SEED, self.is_training))
    noise = random.normal(size=(self.num_points, self.num_dims))
    noise *= self.spread / np.sqrt(self.num_dims)
    labels = np.arange(self.num_points) % self.num_classes
    return (centers[labels] + noise).astype(np.float32)


@experiment_registry.register
class SyntheticClassifier(base_experiment.BaseExperiment):
  """One hidden layer classifies 8 clusters of points, in a few seconds."""

  # Global batch size.
  BATCH_SIZE = 64
  NUM_EVAL_POINTS = 500
  NUM_CLASSES = 8
  NUM_DIMS = 16
  HIDDEN_DIMS = 32
  LEARNING_RATE = 0.5
  NUM_TRAIN_STEPS = 200
  EVAL_ON_TEST = True

  MESH_AXIS_NAMES = ('replica', 'data', 'mdl')
  ICI_MESH_SHAPE: list[int] | None = [1, 1, 1]

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = Config(tasks_lib.SingleTask, name='classifier_task')
    task_p.model = Config(
      models.ClassificationModel,
      name='classifier',
      input_field='inputs',
      network_tpl=Config(
        linears.FeedForward,
        input_dims=self.NUM_DIMS,
        output_dims=self.HIDDEN_DIMS,
      ),
      softmax_tpl=Config(
        embedding_softmax.FullSoftmax,
        input_dims=self.HIDDEN_DIMS,
        num_classes=self.NUM_CLASSES,
      ),
      ici_mesh_shape=self.ICI_MESH_SHAPE,
      mesh_axis_names=self.MESH_AXIS_NAMES,
    )
    optimizer = Config(
      optimizers.ShardedSgd,
      learning_rate=self.LEARNING_RATE,
      lr_schedule=Config(schedules.Constant, value=1.0),
    )
    task_p.train.set(
      learner=Config(
        learners.Learner, loss_name='avg_xent', optimizer=optimizer
      ),
      num_train_steps=self.NUM_TRAIN_STEPS,
      eval_skip_train=True,
    )
    return task_p

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    held_out = self._input(
      name='held_out', num_points=self.NUM_EVAL_POINTS, reset_for_eval=True
    )
    return [self._input(name='train', is_training=True), held_out]

  def _input(self, **kwargs: object) -> Config[base_input.BaseInput]:
    return Config(
      ClusteredPoints,
      batch_size=batch_specs.rows_per_host(self.BATCH_SIZE),
      num_classes=self.NUM_CLASSES,
      num_dims=self.NUM_DIMS,
      **kwargs,
    )


@experiment_registry.register
class SharedNameExperiment(SyntheticClassifier):
  """SyntheticClassifier by a class name that other modules may use too."""
