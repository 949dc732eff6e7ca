# SPDX-License-Identifier: Apache-2.0
"""A Transformer language model over a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import (
  default_learners,
  sharding_annotations,
  transformer_configs,
)
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

  MODEL_CLASS = models.LanguageModel
  VOCAB_SIZE = 32000
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  # One of the two may be None: MODEL_DIMS is their product.
  NUM_HEADS: int | None = None
  DIMS_PER_HEAD: int | None = 128
  NUM_LAYERS = 10
  # Whether to scan over the layers instead of unrolling them.
  USE_REPEATED_LAYER = False
  # Activations of repeated layers that are saved for the backward pass.
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING
  # The dtype of activations; weights are float32.
  FPROP_DTYPE = jnp.bfloat16

  # Whether rows hold several segments.
  PACKED_INPUT = True
  # Whether the embedding has weights of its own, instead of the softmax's.
  SEPARATE_EMBEDDING = False
  TRAINABLE_PE_MAX_SEQ_LEN = 16 * 1024
  TRAINABLE_POSITION_EMB = False
  USE_ROTARY_POSITION_EMB = False
  RELATIVE_BIAS = False

  COMBINE_QKV = True
  # Whether queries, keys and values pass through a depthwise convolution.
  ENABLE_DCONV = False
  NORM_POLICY = 'pre'
  USE_GATED_ACTIVATION = False
  ACTIVATION_CLS: type[activations.BaseActivation] = activations.ReLU
  DROPOUT_PROB = 0.0
  # Soft caps of the absolute values of logits.
  ATTEN_LOGIT_CAP = 50.0
  SOFTMAX_CAP_LOGITS: float | None = 30.0

  # Variants for NVIDIA GPUs.
  USE_CUDNN_FLASH_ATTENTION = False
  # The same as --set task.model.lm_tpl.fp8_scaling=delayed.
  USE_FP8 = False

  # Mesh (replica, data, mdl) within a slice and over slices; None trains one
  # replica per device. USE_EXPERT_PARALLEL adds an axis data_expert before mdl,
  # CONTEXT_PARALLEL an axis seq.
  ICI_MESH_SHAPE: Sequence[int] | None = None
  DCN_MESH_SHAPE: Sequence[int] | None = [1, 1, 1]
  TRAINING_OPTIMIZED_SHARDING = True
  USE_EXPERT_PARALLEL = False
  # Method of attention over sharded sequences: 'ring' passes keys and values
  # around, 'all_gather' gathers them, 'compiler' leaves it to XLA. None does
  # not shard sequences.
  CONTEXT_PARALLEL: str | None = None

  # XLA's options for steps, by platform and name (docs/performance.md).
  COMPILER_OPTIONS: Mapping[str, Mapping[str, bool | int | float | str]] = {}

  LEARNING_RATE: float | None = 2.5e-4
  WEIGHT_DECAY = 1e-3
  CLIP_GRADIENT_NORM_TO_VALUE = 5.0
  # Step at which the decay of the learning rate ends.
  DECAY_END = 100000

  EVAL_INTERVAL_STEPS: int | None = 100
  SUMMARY_INTERVAL_STEPS = 100
  CHECKPOINT_MAX_TO_KEEP = 10
  CHECKPOINT_EVERY_N_STEPS: int | None = 5000
  PROFILER_CAPTURE_STEP: int | None = None
  PROFILER_NUM_STEPS = 2
  PROFILER_MIN_DURATION_SEC = 1

  def task(self) -> Config[tasks_lib.SingleTask]:
    self.validate()
    task_p = transformer_configs.language_model_task(self.MODEL_CLASS)
    task_p.model.fprop_dtype = self.FPROP_DTYPE
    self._set_embeddings(task_p.model.lm_tpl)
    if self.USE_FP8:
      task_p.model.lm_tpl.fp8_scaling = 'delayed'
    stack_p = self._transformer_stack(self.NUM_LAYERS)
    task_p.model.lm_tpl.stacked_transformer_tpl = self._maybe_repeat(stack_p)
    transformer_configs.maybe_setup_moe_params(stack_p)
    self._set_training(task_p)
    self._set_sharding(task_p)
    return task_p

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: Some of them exclude each other.
    """
    super().validate()
    if self.USE_CUDNN_FLASH_ATTENTION and self.ATTEN_LOGIT_CAP > 0:
      raise ValueError(
        'ATTEN_LOGIT_CAP must be 0 with USE_CUDNN_FLASH_ATTENTION=True, got '
        f'{self.ATTEN_LOGIT_CAP}; the fused kernel does not cap logits'
      )
    if self.CONTEXT_PARALLEL and self.USE_EXPERT_PARALLEL:
      raise ValueError(
        'USE_EXPERT_PARALLEL must be False with CONTEXT_PARALLEL='
        f'{self.CONTEXT_PARALLEL!r}, got True; the mesh has one axis for '
        'either'
      )
    if self.RELATIVE_BIAS and self.USE_ROTARY_POSITION_EMB:
      raise ValueError(
        'RELATIVE_BIAS and USE_ROTARY_POSITION_EMB must not both be True; both '
        'encode relative positions, choose one'
      )

  def _attention_heads(self) -> tuple[int, int]:
    """Returns (number of heads, dimension of a head)."""
    num_heads, head_dim = self.NUM_HEADS, self.DIMS_PER_HEAD
    if num_heads:
      head_dim = head_dim or self.MODEL_DIMS // num_heads
    elif head_dim:
      num_heads = self.MODEL_DIMS // head_dim
    else:
      raise ValueError('set NUM_HEADS or DIMS_PER_HEAD, got neither')
    if num_heads * head_dim != self.MODEL_DIMS:
      raise ValueError(
        f'NUM_HEADS x DIMS_PER_HEAD must be MODEL_DIMS={self.MODEL_DIMS}, got '
        f'{num_heads} x {head_dim}; set one of the two to None'
      )
    return num_heads, head_dim

  def _set_embeddings(self, lm_p: Config) -> None:
    """Sets the embeddings and the softmax."""
    lm_p.set(
      packed_input=self.PACKED_INPUT,
      vocab_size=self.VOCAB_SIZE,
      model_dims=self.MODEL_DIMS,
    )
    embedding_p = lm_p.softmax_tpl
    if self.SEPARATE_EMBEDDING:
      embedding_p = Config(embedding_softmax.Embedding)
      lm_p.separate_embedding_tpl = embedding_p
      lm_p.softmax_tpl = Config(embedding_softmax.FullSoftmax)
    embedding_p.scale_sqrt_depth = True
    lm_p.softmax_tpl.set(
      params_init=WeightInit.Gaussian(self.MODEL_DIMS**-0.5),
      soft_cap_logits=self.SOFTMAX_CAP_LOGITS,
    )
    if self.TRAINABLE_POSITION_EMB:
      lm_p.position_emb_tpl = Config(
        embedding_softmax.TrainablePositionalEmbedding,
        max_seq_length=self.TRAINABLE_PE_MAX_SEQ_LEN,
      )

  def _transformer_stack(
    self, num_layers: int
  ) -> Config[transformers.StackedTransformer]:
    """Returns a stack of `num_layers` layers."""
    num_heads, head_dim = self._attention_heads()
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=num_layers,
      num_heads=num_heads,
      dim_per_head=head_dim,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    layer_p.norm_policy = self.NORM_POLICY
    layer_p.tr_fflayer_tpl.set(
      use_gated_activation=self.USE_GATED_ACTIVATION,
      activation_tpl=Config(self.ACTIVATION_CLS),
    )
    self._set_attention(layer_p)
    return stack_p

  def _set_attention(self, layer_p: Config) -> None:
    if self.USE_CUDNN_FLASH_ATTENTION:
      layer_p.tr_atten_tpl = Config(
        gpu_fast_attention.GpuCudnnFusedDotProductAttention, is_causal=True
      )
    if self.CONTEXT_PARALLEL:
      transformer_configs.set_context_parallel_attention(
        layer_p, self.CONTEXT_PARALLEL
      )
    atten_p = layer_p.tr_atten_tpl
    atten_p.set(
      use_bias=False,
      combine_qkv=self.COMBINE_QKV,
      dconv_qkv=self.ENABLE_DCONV,
      atten_logit_cap=self.ATTEN_LOGIT_CAP,
    )
    if self.RELATIVE_BIAS:
      atten_p.relative_bias_tpl = Config(attentions.RelativeBias)
    if self.USE_ROTARY_POSITION_EMB:
      atten_p.use_rotary_position_emb = True

  def _maybe_repeat(self, stack_p: Config) -> Config:
    """Returns the stack, or a scan over its layers."""
    if not self.USE_REPEATED_LAYER:
      return stack_p
    return transformer_configs.repeat_layer(
      stack_p, stack_p.num_layers, self.CHECKPOINT_POLICY
    )

  def _set_training(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    """Sets the learner and the intervals of the training job."""
    default_learners.set_default_adafactor(
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
      compiler_options=self.COMPILER_OPTIONS,
    )

  def _set_sharding(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    if self.ICI_MESH_SHAPE is None:
      return
    annotate = sharding_annotations.set_sharding_annotations_v1
    if self.USE_EXPERT_PARALLEL:
      annotate = (
        sharding_annotations.set_sharding_annotations_with_expert_parallelism
      )
    elif self.CONTEXT_PARALLEL:
      annotate = (
        sharding_annotations.set_sharding_annotations_with_context_parallelism
      )
    annotate(
      task_p,
      self.TRAINING_OPTIMIZED_SHARDING,
      self.ICI_MESH_SHAPE,
      self.DCN_MESH_SHAPE,
    )
