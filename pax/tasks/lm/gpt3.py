# SPDX-License-Identifier: Apache-2.0
"""What makes a Transformer language model a GPT-3."""

from __future__ import annotations

from typing import Any

from pax import tasks_lib
from praxis import base_layer, pax_fiddle
from praxis.layers.transformer_models import stack_configs

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit

GPT_EOS_ID = 1
_INIT_STD = 0.006


def configure_gpt3_task(cls: Any, task_p: TaskConfig) -> TaskConfig:
  """Gives a task GPT-3's biases, norms and initial values; returns the task.

  Its attention has biases, and its output none; logits are not capped, nor
  embeddings scaled.

  Args:
    cls: constants: MAX_SEQ_LEN, SEPARATE_EMBEDDING, EMBEDDING_LOOKUP_STYLE,
      TRAINABLE_POSITION_EMB, LAYERNORM_EPSILON.
    task_p: a Transformer language model with GELU.

  References: GPT-3, https://arxiv.org/abs/2005.14165
  """
  model_p = task_p.model
  model_p.decoder_tpl.set(eos_id=GPT_EOS_ID, seqlen=cls.MAX_SEQ_LEN)
  model_p.params_init = WeightInit.Gaussian(_INIT_STD)
  lm_p = model_p.lm_tpl
  lm_p.softmax_tpl.set(
    params_init=WeightInit.Gaussian(_INIT_STD), soft_cap_logits=None
  )
  lm_p.softmax_tpl.feed_forward_tpl.has_bias = False
  embedding_p = (
    lm_p.separate_embedding_tpl if cls.SEPARATE_EMBEDDING else lm_p.softmax_tpl
  )
  embedding_p.set(
    scale_sqrt_depth=False, lookup_style=cls.EMBEDDING_LOOKUP_STYLE
  )
  if cls.TRAINABLE_POSITION_EMB:
    lm_p.position_emb_tpl.lookup_style = cls.EMBEDDING_LOOKUP_STYLE
  lm_p.final_ln_tpl.epsilon = cls.LAYERNORM_EPSILON
  for block_p in stack_configs.stacked_transformers(
    lm_p.stacked_transformer_tpl
  ):
    _configure_layer(cls, block_p.transformer_layer_params_tpl)
  return task_p


def _configure_layer(cls: Any, layer_p: Any) -> None:
  layer_p.ln_tpl.epsilon = cls.LAYERNORM_EPSILON
  layer_p.tr_fflayer_tpl.ln_tpl.epsilon = cls.LAYERNORM_EPSILON
  layer_p.tr_fflayer_tpl.activation_tpl.approximate = True
  layer_p.tr_atten_tpl.set(internal_enable_per_dim_scale=False, use_bias=True)
  for atten_p in (layer_p.tr_atten_tpl, layer_p.cross_atten_tpl):
    if atten_p is not None:
      atten_p.weight_split_dims_mapping.proj = ['data', 'mdl', None]
