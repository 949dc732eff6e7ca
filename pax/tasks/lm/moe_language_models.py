# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-experts language models with the sizes of an experiment."""

from __future__ import annotations

from typing import Any, Protocol

from praxis import base_layer, pax_fiddle
from praxis.layers import glam, grok
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.transformer_models import stack_configs

LmConfig = pax_fiddle.Config[base_layer.BaseLayer]


class MoeConstants(Protocol):
  """Constants of an experiment that set the sizes of an MoE model."""

  VOCAB_SIZE: int
  NUM_LAYERS: int
  MODEL_DIMS: int
  HIDDEN_DIMS: int
  NUM_EXPERTS: int

  # Properties: an experiment may compute them, or exclude None.

  @property
  def NUM_HEADS(self) -> int | None:  # noqa: N802 (read as a constant)
    """Number of attention heads; None is not supported."""

  @property
  def NUM_GROUPS(self) -> int:  # noqa: N802
    """Number of parts of the batch; each has its own expert capacity."""


class GrokConstants(MoeConstants, Protocol):
  """Constants of an experiment with Grok-1."""

  NUM_KV_HEADS: int
  COMBINE_QKV: bool
  CHECKPOINT_POLICY: AutodiffCheckpointType
  USE_FP8: bool
  # Rotary position embedding; if False, a relative position bias.
  USE_ROPE: bool


def glam_lm(
  cls: MoeConstants,
  *,
  load_balance_weight: float = 0.01,
  z_loss_weight: float = 1e-4,
  repeat: bool = True,
) -> LmConfig:
  """Returns GLaM, with gated dense layers and experts without gates.

  Gated experts would have 1.5 times the parameters of the paper's 64B/64E.

  Args:
    cls: The constants of the experiment.
    load_balance_weight: Weight of the load-balancing loss.
    z_loss_weight: Weight of the z-loss of the softmax.
    repeat: Whether to scan over the layers instead of unrolling them.

  References: section 4 of GLaM, https://arxiv.org/abs/2112.06905
  """
  lm_p = glam.GlamUniTransformerLmHParams(
    name='glam_lm',
    moe_load_balance_loss_weight=load_balance_weight,
    z_loss_weight=z_loss_weight,
    repeat=repeat,
    **_sizes_and_gating(cls),
  )
  for block_p in stack_configs.stacked_transformers(
    lm_p.stacked_transformer_tpl
  ):
    block_p.moe_layer_tpl.use_gated_activation = False
  return lm_p


def grok_lm(
  cls: GrokConstants,
  *,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
) -> LmConfig:
  """Returns Grok-1, with experts in every layer.

  Args:
    cls: The constants of the experiment.
    num_pipeline_stages: Number of stages; 1 is no pipeline.
    num_pipeline_microbatches: Number of microbatches of a pipeline.
  """
  lm_p = grok.GrokUniTransformerLmHParams(
    name='grok_lm',
    attention_num_groups=cls.NUM_KV_HEADS,
    moe_load_balance_loss_weight=0.01,
    z_loss_weight=1e-4,
    combine_qkv=cls.COMBINE_QKV,
    checkpoint_policy=cls.CHECKPOINT_POLICY,
    use_fp8=cls.USE_FP8,
    num_pipeline_stages=num_pipeline_stages,
    num_pipeline_microbatches=num_pipeline_microbatches,
    **_sizes_and_gating(cls),
  )
  if cls.USE_ROPE:
    for block_p in stack_configs.stacked_transformers(
      lm_p.stacked_transformer_tpl
    ):
      block_p.transformer_layer_params_tpl.tr_atten_tpl.set(
        use_rotary_position_emb=True, relative_bias_tpl=None
      )
  return lm_p


def _sizes_and_gating(cls: MoeConstants) -> dict[str, Any]:
  if cls.NUM_HEADS is None:
    raise ValueError(
      'NUM_HEADS must be set for a mixture of experts, got None; it determines'
      ' the dimension of a head'
    )
  return dict(
    vocab_size=cls.VOCAB_SIZE,
    num_transformer_layers=cls.NUM_LAYERS,
    model_dim=cls.MODEL_DIMS,
    ff_dim=cls.HIDDEN_DIMS,
    attention_num_heads=cls.NUM_HEADS,
    attention_key_value_dim=cls.MODEL_DIMS // cls.NUM_HEADS,
    attention_extra_logit=0.0,
    use_tgt_labels_size_as_loss_denominator=True,
    moe=True,
    moe_hidden_dim=cls.HIDDEN_DIMS,
    moe_gating_func='top2',
    moe_gating_embedding_level='token',
    # The capacity of an expert is twice its even share of tokens.
    capacity_factor=2.0,
    e_dim=cls.NUM_EXPERTS,
    num_groups=cls.NUM_GROUPS,
    use_gated_activation=True,
  )
