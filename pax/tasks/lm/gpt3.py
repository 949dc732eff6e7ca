# SPDX-License-Identifier: Apache-2.0
"""GPT-3, as settings of a Transformer language model."""

from __future__ import annotations

from typing import Protocol

from pax import tasks_lib
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers
from praxis.layers.transformer_models import stack_configs

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit

GPT_EOS_ID = 1
_INIT_STD = 0.006


class Gpt3Constants(Protocol):
  """Constants of an experiment that `configure_gpt3_task` reads."""

  MAX_SEQ_LEN: int
  SEPARATE_EMBEDDING: bool
  EMBEDDING_LOOKUP_STYLE: str
  TRAINABLE_POSITION_EMB: bool
  LAYERNORM_EPSILON: float


def configure_gpt3_task(cls: Gpt3Constants, task_p: TaskConfig) -> TaskConfig:
  """Sets the biases, norms and initial weights of GPT-3; returns the task.

  Attention has biases, the softmax has none. Logits are not capped and
  embeddings are not scaled.

  Args:
    cls: The constants of the experiment.
    task_p: A Transformer language model with GELU.

  References: GPT-3, https://arxiv.org/abs/2005.14165
  """
  task_p.model.params_init = WeightInit.Gaussian(_INIT_STD)
  task_p.model.decoder_tpl.set(eos_id=GPT_EOS_ID, seqlen=cls.MAX_SEQ_LEN)
  lm_p = task_p.model.lm_tpl
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


def _configure_layer(
  cls: Gpt3Constants, layer_p: pax_fiddle.Config[transformers.Transformer]
) -> None:
  layer_p.ln_tpl.epsilon = cls.LAYERNORM_EPSILON
  layer_p.tr_fflayer_tpl.ln_tpl.epsilon = cls.LAYERNORM_EPSILON
  layer_p.tr_fflayer_tpl.activation_tpl.approximate = True
  layer_p.tr_atten_tpl.set(internal_enable_per_dim_scale=False, use_bias=True)
  for atten_p in (layer_p.tr_atten_tpl, layer_p.cross_atten_tpl):
    if atten_p is not None:
      atten_p.weight_split_dims_mapping.proj = ['data', 'mdl', None]
