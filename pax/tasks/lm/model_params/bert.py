# SPDX-License-Identifier: Apache-2.0
"""Masked language models, on replicas or over a mesh."""

from __future__ import annotations

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import task_parts
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, models, transformer_models, transformers
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class _TransformerBert(base_experiment.BaseExperiment):
  """What all masked language models have in common.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # Sizes of the model; set by the subclasses.
  NUM_LAYERS: int
  NUM_HEADS: int
  MODEL_DIMS: int
  HIDDEN_DIMS: int
  # Steps between checkpoints.
  CHECKPOINT_EVERY_N_STEPS: int
  # Computes layers in bfloat16 instead of float32.
  ENABLE_BFLOAT16: bool

  VOCAB_SIZE = 32000
  DROPOUT_PROB = 0.0
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3

  USE_REPEATED_LAYER = False
  # What repeated layers keep for the backward pass.
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
  ACTIVATION_CLS = activations.ReLU
  USE_GATED_ACTIVATION = False

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = Config(
      tasks_lib.SingleTask,
      name='bert_task',
      model=Config(models.BertModel, name='bert_lm'),
    )
    if self.ENABLE_BFLOAT16:
      task_p.model.fprop_dtype = jnp.bfloat16
    lm_p = task_p.model.lm_tpl
    lm_p.set(
      model_type=transformer_models.LanguageModelType.BIDIRECTIONAL,
      packed_input=True,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
    )
    lm_p.softmax_tpl.scale_sqrt_depth = True
    lm_p.softmax_tpl.soft_cap_logits = 30.0
    lm_p.softmax_tpl.params_init = WeightInit.Gaussian(self.MODEL_DIMS**-0.5)
    stack_p = self._stack()
    task_parts.maybe_setup_moe_params(stack_p)
    lm_p.stacked_transformer_tpl = stack_p
    if self.USE_REPEATED_LAYER:
      lm_p.stacked_transformer_tpl = task_parts.repeated(
        stack_p, self.NUM_LAYERS, self.CHECKPOINT_POLICY
      )
    task_p.train.save_interval_steps = self.CHECKPOINT_EVERY_N_STEPS
    return task_p

  def _stack(self) -> Config[transformers.StackedTransformer]:
    """Returns the layers; `repeated` makes one of them many."""
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=self.NUM_LAYERS,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_heads=self.NUM_HEADS,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    layer_p.tr_atten_tpl.atten_logit_cap = 50.0
    layer_p.tr_atten_tpl.use_bias = False
    layer_p.tr_fflayer_tpl.activation_tpl = Config(self.ACTIVATION_CLS)
    layer_p.tr_fflayer_tpl.use_gated_activation = self.USE_GATED_ACTIVATION
    return stack_p


class TransformerBertPmapAdam(_TransformerBert):
  """A masked language model, one replica per device, trained by Adam."""

  NUM_LAYERS = 4
  NUM_HEADS = 8
  MODEL_DIMS = 128
  HIDDEN_DIMS = MODEL_DIMS * 4

  CHECKPOINT_EVERY_N_STEPS = 5000
  # Step at which the learning rate has decayed.
  DECAY_END = 300000
  # Whether the model masks tokens even where the data have masked some.
  FORCE_MASK_GENERATION = False
  ENABLE_BFLOAT16 = True

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.model.force_mask_generation = self.FORCE_MASK_GENERATION
    task_parts.set_default_adam(
      task_p,
      self.LEARNING_RATE,
      self.WEIGHT_DECAY,
      decay_end=self.DECAY_END,
    )
    return task_p


class TransformerBertSpmdAdafactor(_TransformerBert):
  """A masked language model over a mesh, trained by sharded Adafactor."""

  NUM_LAYERS = 32
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  # The token that stands for a masked one, where the data have masked none.
  MASK_TOKEN_ID = 0

  CHECKPOINT_EVERY_N_STEPS = 500
  CHECKPOINT_SAVE_MAX_TO_KEEP = 10
  # Step at which the learning rate has decayed.
  DECAY_END = 100000
  ENABLE_BFLOAT16 = False

  # Mesh (replica, data, mdl); None trains one replica per device.
  MESH_SHAPE = None
  TRAINING_OPTIMIZED_SHARDING = True

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.model.mask_token_id = self.MASK_TOKEN_ID
    task_p.train.save_max_to_keep = self.CHECKPOINT_SAVE_MAX_TO_KEEP
    task_parts.set_default_adafactor(
      task_p,
      self.LEARNING_RATE,
      self.WEIGHT_DECAY,
      decay_end=self.DECAY_END,
    )
    if self.MESH_SHAPE is not None:
      task_parts.set_sharding_annotations_v1(
        task_p, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
      )
    return task_p

  def _stack(self) -> Config[transformers.StackedTransformer]:
    stack_p = super()._stack()
    stack_p.transformer_layer_params_tpl.tr_atten_tpl.combine_qkv = True
    return stack_p
