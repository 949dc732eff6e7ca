# SPDX-License-Identifier: Apache-2.0
"""LLaMA, as settings of a Transformer language model; without attention."""

from __future__ import annotations

import jax.numpy as jnp

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations
from praxis.layers.transformer_models import stack_configs

LmConfig = pax_fiddle.Config[base_layer.BaseLayer]


def configure_llama(lm_p: LmConfig, epsilon: float) -> None:
  """Sets the RMS norms of LLaMA and removes biases.

  Args:
    lm_p: A language model with a separate embedding and gated feed-forward
      layers.
    epsilon: Added to the mean square in norms.

  References: LLaMA, https://arxiv.org/abs/2302.13971, and LLaMA 2,
  https://arxiv.org/abs/2307.09288
  """
  # Positions are encoded by rotary embeddings in attention.
  lm_p.position_emb_tpl = None
  lm_p.separate_embedding_tpl.scale_sqrt_depth = False
  set_rms_norms(lm_p, epsilon)


def set_rms_norms(lm_p: LmConfig, epsilon: float) -> None:
  """Replaces layer norms by RMS norms and removes biases.

  Args:
    lm_p: A language model.
    epsilon: Added to the mean square in norms.
  """
  norm_p = pax_fiddle.Config(
    normalizations.RmsNorm,
    direct_scale=True,
    epsilon=epsilon,
    intermediate_dtype=jnp.float32,
  )
  lm_p.softmax_tpl.feed_forward_tpl.has_bias = False
  lm_p.final_ln_tpl = norm_p.clone()
  for block_p in stack_configs.stacked_transformers(
    lm_p.stacked_transformer_tpl
  ):
    layer_p = block_p.transformer_layer_params_tpl
    layer_p.ln_tpl = norm_p.clone()
    layer_p.tr_fflayer_tpl.set(ln_tpl=norm_p.clone(), has_bias=False)
