# SPDX-License-Identifier: Apache-2.0
"""Conformers, state space models and adapters."""

from __future__ import annotations

from praxis.contrib.gpu.scripts_gpu import lora_layers
from praxis.layers import (
  adapters,
  conformers,
  gated_delta_net,
  low_rank_adaptation,
  mamba2,
  ssm,
  ssm_transformers,
  transformers,
)
from tests.golden.layer_case import case, f32, i32

_X = f32(2, 5, 8)
_PAD = f32(2, 5)
_MASK = f32(1, 1, 5, 5)
_ATTENTION = {'input_dim': 8, 'hidden_dim': 8, 'num_heads': 2}
_SSM = {'nheads': 3, 'dim': 8, 'l_max': 6}
_LAYER = {'input_dims': 8, 'hidden_dims': 16, 'ssm_nheads': 3, 'ssm_l_max': 6}
_HEADS = {'input_dim': 8, 'num_heads': 2, 'dim_per_head': 4}
_ADAPTER = adapters.MultitaskResidualAdapter.config(
  input_dims=8, bottleneck_dims=3, num_tasks=2
)


def _sharded(cfg):
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  return cfg


def _gated_delta_net():
  cfg = gated_delta_net.GatedDeltaNet.config(
    num_key_heads=1, key_head_dim=3, conv_kernel_size=2
  )
  cfg.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  cfg.weight_split_dims_mapping.dconv = ['mdl', None]
  return transformers.Transformer.config(
    input_dims=8, hidden_dims=16, num_heads=2, tr_atten_tpl=cfg
  )


def _mamba2():
  cfg = mamba2.Mamba2.config(
    num_key_heads=2, key_head_dim=3, conv_kernel_size=2
  )
  cfg.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  cfg.weight_split_dims_mapping.dconv = ['mdl', None]
  return transformers.Transformer.config(
    input_dims=8, hidden_dims=16, num_heads=2, tr_atten_tpl=cfg
  )


def _self_attention():
  cfg = conformers.SelfAttentionWithNormAndResidual.config()
  cfg.self_atten_tpl.set(left_context=2, **_ATTENTION)
  cfg.norm_tpl.dim = 8
  return cfg


CASES = {
  'DotProductAttentionWithContext': case(
    conformers.DotProductAttentionWithContext.config(
      right_context=1, **_ATTENTION
    ),
    *[_X] * 3,
    _MASK,
  ),
  'DotProductAttentionWithContextXL': case(
    conformers.DotProductAttentionWithContextXL.config(
      rel_pos_emb_dim=8, right_context=1, **_ATTENTION
    ),
    *[_X] * 3,
    _MASK,
  ),
  'SelfAttentionWithNormAndResidual': case(_self_attention(), _X, _PAD),
  'Conformer': case(
    conformers.Conformer.config(
      input_dims=8, model_dims=8, kernel_size=3, atten_num_heads=2
    ),
    _X,
    _PAD,
  ),
  'GatedDeltaNet': case(_gated_delta_net(), _X, _PAD, _MASK),
  'Mamba2': case(_mamba2(), _X, _PAD, _MASK),
  'TransformerWithoutFeedForward': case(
    transformers.TransformerWithoutFeedForward.config(
      input_dims=8, hidden_dims=16, num_heads=2
    ),
    _X,
    _PAD,
    _MASK,
  ),
  'SSM': case(ssm.SSM.config(**_SSM), _X),
  'S5': case(_sharded(ssm.S5.config(**_SSM)), _X),
  'SSMTransformer': case(
    ssm_transformers.SSMTransformer.config(ssm_dim=8, **_LAYER), _X, _PAD, _MASK
  ),
  'SSMGated': case(
    ssm_transformers.SSMGated.config(ssm_dim=4, **_LAYER), _X, _PAD, _MASK
  ),
  'MultitaskResidualAdapter': case(_ADAPTER, _X, None, i32(2)),
  'AdaptedTransformerFeedForward': case(
    adapters.AdaptedTransformerFeedForward.config(
      input_dims=8, hidden_dims=16, adapter_tpl=_ADAPTER
    ),
    _X,
    _PAD,
    tasks=i32(2),
  ),
  'AdaptedLinear': case(
    _sharded(
      low_rank_adaptation.AdaptedLinear.config(
        input_dims=8,
        output_dims=6,
        lora_rank=3,
        lora_alpha=6.0,
        has_reference=True,
      )
    ),
    _X,
  ),
  'AdaptedAttentionProjection': case(
    low_rank_adaptation.AdaptedAttentionProjection.config(
      **_HEADS, lora_rank=3
    ),
    _X,
  ),
  'AdaptedOneHeadedAttentionProjection': case(
    low_rank_adaptation.AdaptedOneHeadedAttentionProjection.config(
      input_dim=8, output_dim=4, lora_rank=3
    ),
    _X,
  ),
  'AdaptedCombinedQKVProjectionLayer': case(
    low_rank_adaptation.AdaptedCombinedQKVProjectionLayer.config(
      **_HEADS, lora_rank=3
    ),
    _X,
  ),
  'AdaptedFeedForwardMoe': case(
    low_rank_adaptation.AdaptedFeedForwardMoe.config(
      input_dims=8,
      hidden_dims=6,
      num_experts=2,
      num_groups=1,
      gating_func='dropless',
      lora_rank=3,
    ),
    _X,
  ),
  'AdaptedBranchNormFeedForwardMoe': case(
    low_rank_adaptation.AdaptedBranchNormFeedForwardMoe.config(
      input_dims=8,
      hidden_dims=6,
      num_experts=2,
      num_groups=1,
      gating_func='dropless',
      norm_policy='primer_hybrid',
      shared_experts_tpl=transformers.TransformerFeedForward.config(
        hidden_dims=5
      ),
      lora_rank=3,
    ),
    _X,
  ),
  'LoraLinear': case(
    _sharded(
      lora_layers.LoraLinear.config(input_dims=8, output_dims=6, rank=3)
    ),
    _X,
  ),
  'LoraAttentionProjection': case(
    lora_layers.LoraAttentionProjection.config(**_HEADS, rank=3), _X
  ),
  'LoraCombinedQKVProjection': case(
    lora_layers.LoraCombinedQKVProjection.config(**_HEADS, rank=3), _X
  ),
}
