# SPDX-License-Identifier: Apache-2.0
"""Decoders whose experts are chosen with a bias (arXiv:2408.15664)."""

from __future__ import annotations

from pax.tasks.lm.params import fine_tuning
from praxis import pax_fiddle
from praxis.layers.transformer_models import stack_configs


class ChoiceBiasLm(fine_tuning.HuggingFaceLm):
  """A decoder with the routing of DeepSeek-V3."""

  USE_REPEATED_LAYER = True
  # A training step adds it to the biases of experts with fewer tokens than the
  # mean, and subtracts it from others.
  CHOICE_BIAS_UPDATE_RATE = 0.001

  def _set_layers(self, model_p: pax_fiddle.Config) -> None:
    stack_p = model_p.lm_tpl.stacked_transformer_tpl
    for stacked_p in stack_configs.stacked_transformers(stack_p):
      rate = self.CHOICE_BIAS_UPDATE_RATE
      stacked_p.moe_layer_tpl.choice_bias_update_rate = rate
