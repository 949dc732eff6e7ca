# SPDX-License-Identifier: Apache-2.0
"""A multi-layer perceptron classifier that benchmarks matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from pax import base_experiment, tasks_lib
from pax.tasks.lm import default_learners, sharding_annotations
from praxis import base_layer, pax_fiddle
from praxis.layers import models
from praxis.pytypes import SplitDimsMapping

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class ClassificationModelAdam(base_experiment.BaseExperiment):
  """A multi-layer perceptron trained by Adam."""

  NUM_LAYER = 8
  HIDDEN_DIM = 7168
  INPUT_DIM = 4096
  OUTPUT_DIM = 4096

  # Mesh (replica, data, mdl); None trains one replica per device.
  MESH_SHAPE: Sequence[int] | None = None
  TRAINING_OPTIMIZED_SHARDING = True
  # Split-dims mappings of the weights.
  MLP_WEIGHT_SHARDING: SplitDimsMapping = None
  SOFTMAX_WEIGHT_SHARDING: SplitDimsMapping = None

  NUM_TRAIN_STEPS = 10
  WEIGHT_DECAY = 1e-3
  LEARNING_RATE = 1e-3
  SUMMARY_INTERVAL_STEPS = 5
  CHECKPOINT_EVERY_N_STEPS = 5

  def task(self) -> Config[tasks_lib.SingleTask]:
    model_p = Config(models.ClassificationMLPModel, name='classification_model')
    mlp_p, softmax_p = model_p.mlp_tpl, model_p.softmax_tpl
    mlp_p.set(num_layers=self.NUM_LAYER, hidden_dims=self.HIDDEN_DIM)
    mlp_p.ff_tpl.set(input_dims=self.INPUT_DIM, output_dims=self.OUTPUT_DIM)
    softmax_p.set(
      input_dims=self.INPUT_DIM,
      num_classes=self.INPUT_DIM,
      params_init=WeightInit.Gaussian(self.INPUT_DIM**-0.5),
    )
    task_p = Config(
      tasks_lib.SingleTask, name='classification_task', model=model_p
    )
    task_p.train.set(
      num_train_steps=self.NUM_TRAIN_STEPS,
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
    )
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY
    )
    if self.MESH_SHAPE is not None:
      mlp_p.ff_tpl.weight_split_dims_mapping.wt = self.MLP_WEIGHT_SHARDING
      softmax_p.weight_split_dims_mapping.wt = self.SOFTMAX_WEIGHT_SHARDING
      sharding_annotations.set_sharding_annotations_v1(
        task_p, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
      )
    return task_p
