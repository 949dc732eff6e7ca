# SPDX-License-Identifier: Apache-2.0
"""Language models with mixtures of experts, from an experiment's constants.

An experiment has VOCAB_SIZE, NUM_LAYERS, MODEL_DIMS, HIDDEN_DIMS, NUM_HEADS,
NUM_EXPERTS, and NUM_GROUPS, the parts of a batch whose tokens compete for room
at the experts.
"""

from __future__ import annotations

from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers import glam, grok
from praxis.layers.transformer_models import stack_configs

LmConfig = pax_fiddle.Config[base_layer.BaseLayer]


def glam_lm(
  cls: Any,
  *,
  load_balance_weight: float = 0.01,
  z_loss_weight: float = 1e-4,
  repeat: bool = True,
) -> LmConfig:
  """Returns GLaM, whose dense layers are gated and whose experts are not.

  Gated experts would be half as large again as those of the paper's 64B/64E.

  References: section 4 of GLaM, https://arxiv.org/abs/2112.06905
  """
  lm_p = glam.GlamUniTransformerLmHParams(
    name='glam_lm',
    moe_load_balance_loss_weight=load_balance_weight,
    z_loss_weight=z_loss_weight,
    repeat=repeat,
    **_sizes_and_routing(cls),
  )
  for block_p in stack_configs.stacked_transformers(
    lm_p.stacked_transformer_tpl
  ):
    block_p.moe_layer_tpl.use_gated_activation = False
  return lm_p


def grok_lm(cls: Any, **pipeline: int) -> LmConfig:
  """Returns Grok-1, which has experts in every layer.

  Args:
    cls: has NUM_KV_HEADS, COMBINE_QKV, CHECKPOINT_POLICY, USE_FP8 and USE_ROPE
      too: whether heads are rotated by their positions, which a relative bias
      tells otherwise.
    **pipeline: num_pipeline_stages and num_pipeline_microbatches, if any.
  """
  lm_p = grok.GrokUniTransformerLmHParams(
    name='grok_lm',
    attention_num_groups=cls.NUM_KV_HEADS,
    moe_load_balance_loss_weight=0.01,
    z_loss_weight=1e-4,
    combine_qkv=cls.COMBINE_QKV,
    checkpoint_policy=cls.CHECKPOINT_POLICY,
    use_fp8=cls.USE_FP8,
    **_sizes_and_routing(cls),
    **pipeline,
  )
  if cls.USE_ROPE:
    for block_p in stack_configs.stacked_transformers(
      lm_p.stacked_transformer_tpl
    ):
      block_p.transformer_layer_params_tpl.tr_atten_tpl.set(
        use_rotary_position_emb=True, relative_bias_tpl=None
      )
  return lm_p


def _sizes_and_routing(cls: Any) -> dict[str, Any]:
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
    # Each expert takes twice its share of tokens.
    capacity_factor=2.0,
    e_dim=cls.NUM_EXPERTS,
    num_groups=cls.NUM_GROUPS,
    use_gated_activation=True,
  )
