# SPDX-License-Identifier: Apache-2.0
"""A perceptron, to measure matrix products."""

from __future__ import annotations

from pax import base_experiment, tasks_lib
from pax.tasks.lm import task_parts
from praxis import base_layer, pax_fiddle
from praxis.layers import models

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class ClassificationModelAdam(base_experiment.BaseExperiment):
  """A multi-layer perceptron trained by Adam, to measure matrix products."""

  NUM_LAYER = 8
  INPUT_DIM = 4096
  HIDDEN_DIM = 7168
  OUTPUT_DIM = 4096
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  CHECKPOINT_EVERY_N_STEPS = 5
  SUMMARY_INTERVAL_STEPS = 5
  NUM_TRAIN_STEPS = 10

  # Split-dims mappings of the weights.
  MLP_WEIGHT_SHARDING = None
  SOFTMAX_WEIGHT_SHARDING = None
  # Mesh (replica, data, mdl); None trains one replica per device.
  MESH_SHAPE = None
  TRAINING_OPTIMIZED_SHARDING = True

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = Config(tasks_lib.SingleTask, name='classification_task')
    task_p.model = Config(
      models.ClassificationMLPModel, name='classification_model'
    )
    mlp_p, softmax_p = task_p.model.mlp_tpl, task_p.model.softmax_tpl
    mlp_p.num_layers = self.NUM_LAYER
    mlp_p.hidden_dims = self.HIDDEN_DIM
    mlp_p.ff_tpl.input_dims = self.INPUT_DIM
    mlp_p.ff_tpl.output_dims = self.OUTPUT_DIM
    softmax_p.input_dims = self.INPUT_DIM
    softmax_p.num_classes = self.INPUT_DIM
    softmax_p.params_init = WeightInit.Gaussian(self.INPUT_DIM**-0.5)
    task_p.train.save_interval_steps = self.CHECKPOINT_EVERY_N_STEPS
    task_p.train.summary_interval_steps = self.SUMMARY_INTERVAL_STEPS
    task_p.train.num_train_steps = self.NUM_TRAIN_STEPS
    task_parts.set_default_adam(task_p, self.LEARNING_RATE, self.WEIGHT_DECAY)
    if self.MESH_SHAPE is not None:
      mlp_p.ff_tpl.weight_split_dims_mapping.wt = self.MLP_WEIGHT_SHARDING
      softmax_p.weight_split_dims_mapping.wt = self.SOFTMAX_WEIGHT_SHARDING
      task_parts.set_sharding_annotations_v1(
        task_p, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
      )
    return task_p
