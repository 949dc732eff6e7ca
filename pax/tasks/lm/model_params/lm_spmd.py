# SPDX-License-Identifier: Apache-2.0
"""A language model over a mesh."""

from __future__ import annotations

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import task_parts
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  attentions,
  embedding_softmax,
  gpu_fast_attention,
  models,
  transformers,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class TransformerLmSpmdAdafactor(base_experiment.BaseExperiment):
  """A Transformer language model over a mesh, trained by sharded Adafactor."""

  NUM_LAYERS = 10
  VOCAB_SIZE = 32000
  # Heads are MODEL_DIMS / DIMS_PER_HEAD unless NUM_HEADS is set.
  DIMS_PER_HEAD = 128
  NUM_HEADS = None
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  # What layers compute in; weights are float32.
  FPROP_DTYPE = jnp.bfloat16
  PACKED_INPUT = True

  USE_REPEATED_LAYER = False
  # Whether the embedding has weights apart from the softmax's.
  SEPARATE_EMBEDDING = False
  TRAINABLE_POSITION_EMB = False
  TRAINABLE_PE_MAX_SEQ_LEN = 16 * 1024
  RELATIVE_BIAS = False
  USE_ROTARY_POSITION_EMB = False
  NORM_POLICY = 'pre'
  # Whether queries, keys and values pass a depthwise convolution.
  ENABLE_DCONV = False
  COMBINE_QKV = True
  ACTIVATION_CLS = activations.ReLU
  USE_GATED_ACTIVATION = False
  # Variants for NVIDIA's GPUs, and for mixtures of experts.
  USE_FP8 = False
  USE_CUDNN_FLASH_ATTENTION = False
  USE_EXPERT_PARALLEL = False
  # How attention works over sequences that are split: 'ring' (keys go from
  # device to device), 'all_gather' or 'compiler'; None: they are not split.
  CONTEXT_PARALLEL = None

  DROPOUT_PROB = 0.0
  LEARNING_RATE = 2.5e-4
  CLIP_GRADIENT_NORM_TO_VALUE = 5.0
  WEIGHT_DECAY = 1e-3
  # Logits stay within plus and minus this.
  SOFTMAX_CAP_LOGITS = 30.0
  ATTEN_LOGIT_CAP = 50.0
  # Step at which the learning rate has decayed.
  DECAY_END = 100000
  # What repeated layers keep for the backward pass.
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  CHECKPOINT_EVERY_N_STEPS = 5000
  CHECKPOINT_MAX_TO_KEEP = 10
  SUMMARY_INTERVAL_STEPS = 100
  EVAL_INTERVAL_STEPS = 100
  PROFILER_NUM_STEPS = 2
  PROFILER_MIN_DURATION_SEC = 1
  PROFILER_CAPTURE_STEP = None

  # Mesh (replica, data, mdl) within a slice, and over slices. Before mdl there
  # is data_expert with USE_EXPERT_PARALLEL, or seq with CONTEXT_PARALLEL.
  ICI_MESH_SHAPE = None
  DCN_MESH_SHAPE = [1, 1, 1]
  TRAINING_OPTIMIZED_SHARDING = True

  MODEL_CLASS = models.LanguageModel

  def task(self) -> Config[tasks_lib.SingleTask]:
    self.validate()
    task_p = task_parts.language_model_task(self.MODEL_CLASS)
    task_p.model.fprop_dtype = self.FPROP_DTYPE
    self._set_embeddings(task_p.model.lm_tpl)
    stack_p = self._stack(self.NUM_LAYERS)
    task_p.model.lm_tpl.stacked_transformer_tpl = self._repeat_or_not(stack_p)
    task_parts.maybe_setup_moe_params(stack_p)
    self._set_training(task_p)
    self._set_sharding(task_p)
    return task_p

  def validate(self) -> None:
    if self.USE_CUDNN_FLASH_ATTENTION and self.ATTEN_LOGIT_CAP > 0:
      raise ValueError(
        'ATTEN_LOGIT_CAP must be 0 with USE_CUDNN_FLASH_ATTENTION=True, got '
        f'{self.ATTEN_LOGIT_CAP}; the fused kernel does not cap logits'
      )

    if self.CONTEXT_PARALLEL and self.USE_EXPERT_PARALLEL:
      raise ValueError(
        'USE_EXPERT_PARALLEL must be False with CONTEXT_PARALLEL='
        f'{self.CONTEXT_PARALLEL!r}, got True; a mesh has an axis for one of '
        'them'
      )

  def _heads(self) -> tuple[int, int]:
    """Returns (number of heads, dimensions per head)."""
    heads, dims = self.NUM_HEADS, self.DIMS_PER_HEAD
    if heads is None and dims is None:
      raise ValueError('set NUM_HEADS or DIMS_PER_HEAD, got neither')
    heads = heads or self.MODEL_DIMS // dims
    dims = dims or self.MODEL_DIMS // heads
    if heads * dims != self.MODEL_DIMS:
      raise ValueError(
        f'NUM_HEADS x DIMS_PER_HEAD must be MODEL_DIMS={self.MODEL_DIMS}, got '
        f'{heads} x {dims}; set one of the two to None'
      )
    return heads, dims

  def _set_embeddings(self, lm_p: Config) -> None:
    """Sets what comes before and after the layers."""
    lm_p.packed_input = self.PACKED_INPUT
    lm_p.model_dims = self.MODEL_DIMS
    lm_p.vocab_size = self.VOCAB_SIZE
    if self.SEPARATE_EMBEDDING:
      lm_p.separate_embedding_tpl = Config(embedding_softmax.Embedding)
      lm_p.softmax_tpl = Config(embedding_softmax.FullSoftmax)
      scaled_p = lm_p.separate_embedding_tpl
    else:
      scaled_p = lm_p.softmax_tpl
    scaled_p.scale_sqrt_depth = True
    lm_p.softmax_tpl.soft_cap_logits = self.SOFTMAX_CAP_LOGITS
    lm_p.softmax_tpl.params_init = WeightInit.Gaussian(self.MODEL_DIMS**-0.5)
    if self.TRAINABLE_POSITION_EMB:
      lm_p.position_emb_tpl = Config(
        embedding_softmax.TrainablePositionalEmbedding,
        max_seq_length=self.TRAINABLE_PE_MAX_SEQ_LEN,
      )

  def _stack(self, num_layers: int) -> Config[transformers.StackedTransformer]:
    """Returns a stack of so many layers."""
    heads, dims_per_head = self._heads()
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=num_layers,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_heads=heads,
      dim_per_head=dims_per_head,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    layer_p.norm_policy = self.NORM_POLICY
    layer_p.tr_fflayer_tpl.activation_tpl = Config(self.ACTIVATION_CLS)
    layer_p.tr_fflayer_tpl.use_gated_activation = self.USE_GATED_ACTIVATION
    self._set_attention(layer_p)
    if self.USE_FP8:
      task_parts.use_fp8(layer_p)
    return stack_p

  def _set_attention(self, layer_p: Config) -> None:
    if self.USE_CUDNN_FLASH_ATTENTION:
      layer_p.tr_atten_tpl = Config(
        gpu_fast_attention.GpuCudnnFusedDotProductAttention, is_causal=True
      )
    if self.CONTEXT_PARALLEL:
      task_parts.spread_attention(layer_p, self.CONTEXT_PARALLEL)
    atten_p = layer_p.tr_atten_tpl
    atten_p.atten_logit_cap = self.ATTEN_LOGIT_CAP
    atten_p.use_bias = False
    atten_p.combine_qkv = self.COMBINE_QKV
    atten_p.dconv_qkv = self.ENABLE_DCONV
    if self.RELATIVE_BIAS and self.USE_ROTARY_POSITION_EMB:
      raise ValueError(
        'RELATIVE_BIAS and USE_ROTARY_POSITION_EMB are both set; both encode '
        'relative positions, choose one'
      )
    if self.RELATIVE_BIAS:
      atten_p.relative_bias_tpl = Config(attentions.RelativeBias)
    if self.USE_ROTARY_POSITION_EMB:
      atten_p.use_rotary_position_emb = True

  def _repeat_or_not(self, stack_p: Config) -> Config:
    """Returns the stack, or one layer of it repeated by a scan."""
    if not self.USE_REPEATED_LAYER:
      return stack_p
    return task_parts.repeated(
      stack_p, stack_p.num_layers, self.CHECKPOINT_POLICY
    )

  def _set_training(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    """Sets the learner and the intervals."""
    task_parts.set_default_adafactor(
      task_p,
      self.LEARNING_RATE,
      self.WEIGHT_DECAY,
      decay_end=self.DECAY_END,
      clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
    )
    task_p.train.set(
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      save_max_to_keep=self.CHECKPOINT_MAX_TO_KEEP,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
      profiler_num_steps=self.PROFILER_NUM_STEPS,
      profiler_min_duration_sec=self.PROFILER_MIN_DURATION_SEC,
      profiler_capture_step=self.PROFILER_CAPTURE_STEP,
    )

  def _set_sharding(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    if self.ICI_MESH_SHAPE is None:
      return
    annotate = task_parts.set_sharding_annotations_v1
    if self.USE_EXPERT_PARALLEL:
      annotate = task_parts.set_sharding_annotations_with_expert_parallelism
    elif self.CONTEXT_PARALLEL:
      annotate = task_parts.set_sharding_annotations_with_context_parallelism
    annotate(
      task_p,
      self.TRAINING_OPTIMIZED_SHARDING,
      self.ICI_MESH_SHAPE,
      self.DCN_MESH_SHAPE,
    )
