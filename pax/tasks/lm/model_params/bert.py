# SPDX-License-Identifier: Apache-2.0
"""Masked language models, replicated or sharded over a mesh."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import (
  default_learners,
  sharding_annotations,
  transformer_configs,
)
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, models, transformer_models, transformers
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class _TransformerBert(base_experiment.BaseExperiment):
  """Base of the masked language models.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # Sizes of the model; set by the subclasses.
  NUM_LAYERS: int
  NUM_HEADS: int
  MODEL_DIMS: int
  HIDDEN_DIMS: int
  # Steps between checkpoints.
  CHECKPOINT_EVERY_N_STEPS: int
  # Whether layers compute in bfloat16 instead of float32.
  ENABLE_BFLOAT16: bool

  VOCAB_SIZE = 32000
  ACTIVATION_CLS: type[activations.BaseActivation] = activations.ReLU
  USE_GATED_ACTIVATION = False
  # Whether to scan over the layers instead of unrolling them.
  USE_REPEATED_LAYER = False
  # Activations of repeated layers that are saved for the backward pass.
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM

  WEIGHT_DECAY = 1e-3
  LEARNING_RATE = 1e-3
  DROPOUT_PROB = 0.0

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = Config(
      tasks_lib.SingleTask,
      name='bert_task',
      model=Config(models.BertModel, name='bert_lm'),
    )
    task_p.train.save_interval_steps = self.CHECKPOINT_EVERY_N_STEPS
    if self.ENABLE_BFLOAT16:
      task_p.model.fprop_dtype = jnp.bfloat16
    stack_p = self._transformer_stack()
    layers_p: Config = stack_p
    if self.USE_REPEATED_LAYER:
      layers_p = transformer_configs.repeat_layer(
        stack_p, self.NUM_LAYERS, self.CHECKPOINT_POLICY
      )
    transformer_configs.maybe_setup_moe_params(stack_p)
    lm_p = task_p.model.lm_tpl.set(
      model_type=transformer_models.LanguageModelType.BIDIRECTIONAL,
      packed_input=True,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
      stacked_transformer_tpl=layers_p,
    )
    lm_p.softmax_tpl.set(
      params_init=WeightInit.Gaussian(self.MODEL_DIMS**-0.5),
      scale_sqrt_depth=True,
      soft_cap_logits=30.0,
    )
    return task_p

  def _transformer_stack(self) -> Config[transformers.StackedTransformer]:
    """Returns the stack of layers, before it is repeated."""
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=self.NUM_LAYERS,
      num_heads=self.NUM_HEADS,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    layer_p.tr_atten_tpl.set(use_bias=False, atten_logit_cap=50.0)
    layer_p.tr_fflayer_tpl.set(
      use_gated_activation=self.USE_GATED_ACTIVATION,
      activation_tpl=Config(self.ACTIVATION_CLS),
    )
    return stack_p


class TransformerBertPmapAdam(_TransformerBert):
  """A masked language model, one replica per device, trained by Adam."""

  MODEL_DIMS = 128
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 4
  NUM_HEADS = 8
  # Whether the model masks tokens even where the data have masked some.
  FORCE_MASK_GENERATION = False
  ENABLE_BFLOAT16 = True

  # Step at which the decay of the learning rate ends.
  DECAY_END = 300000
  CHECKPOINT_EVERY_N_STEPS = 5000

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.model.force_mask_generation = self.FORCE_MASK_GENERATION
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    return task_p


class TransformerBertSpmdAdafactor(_TransformerBert):
  """A masked language model over a mesh, trained by sharded Adafactor."""

  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 32
  NUM_HEADS = 16
  # Id of the mask token, for batches without masked tokens.
  MASK_TOKEN_ID = 0
  ENABLE_BFLOAT16 = False

  # Mesh (replica, data, mdl); None trains one replica per device.
  MESH_SHAPE: Sequence[int] | None = None
  TRAINING_OPTIMIZED_SHARDING = True

  # Step at which the decay of the learning rate ends.
  DECAY_END = 100000
  CHECKPOINT_EVERY_N_STEPS = 500
  CHECKPOINT_SAVE_MAX_TO_KEEP = 10

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.model.mask_token_id = self.MASK_TOKEN_ID
    task_p.train.save_max_to_keep = self.CHECKPOINT_SAVE_MAX_TO_KEEP
    default_learners.set_default_adafactor(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    if self.MESH_SHAPE is not None:
      sharding_annotations.set_sharding_annotations_v1(
        task_p, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
      )
    return task_p

  def _transformer_stack(self) -> Config[transformers.StackedTransformer]:
    stack_p = super()._transformer_stack()
    stack_p.transformer_layer_params_tpl.tr_atten_tpl.combine_qkv = True
    return stack_p
