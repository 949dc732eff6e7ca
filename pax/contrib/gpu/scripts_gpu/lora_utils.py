# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with low-rank adapters (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Sequence

from pax import tasks_lib
from praxis import base_layer, pax_fiddle
from praxis.contrib.gpu.scripts_gpu import lora_layers
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]
TaskConfig = Config[tasks_lib.SingleTask]

# Matches the paths of LoRA's variables.
_LORA_VARIABLES = r'^.*lora.*$'
_TARGETS = ('all', 'attention', 'mlp')


class LoRAMixin:
  """Mixin for experiments that train only the variables of LoRA.

  References: LoRA, https://arxiv.org/abs/2106.09685
  """

  # Set by CheckpointRestoreMixin, if the experiment has it.
  CHECKPOINT_IGNORE_RULES: Sequence[str] | None

  USE_LORA = False
  LORA_RANK = 8
  # The layers with adapters: 'attention', 'mlp' or 'all'.
  LORA_TARGET_LAYERS = 'all'

  def configure_lora(self, task_p: TaskConfig) -> TaskConfig:
    """Adds adapters with USE_LORA and freezes the rest; returns the task.

    CHECKPOINT_IGNORE_RULES are extended, so that the checkpoint to initialize
    from need not have adapters.

    Raises:
      ValueError: LORA_TARGET_LAYERS is unknown.
    """
    if self.LORA_TARGET_LAYERS not in _TARGETS:
      raise ValueError(
        f'LORA_TARGET_LAYERS must be one of {_TARGETS}, got '
        f'{self.LORA_TARGET_LAYERS!r}'
      )
    if not self.USE_LORA:
      return task_p
    if hasattr(self, 'CHECKPOINT_IGNORE_RULES'):
      ignore_rules = self.CHECKPOINT_IGNORE_RULES or ()
      self.CHECKPOINT_IGNORE_RULES = [
        *dict.fromkeys([*ignore_rules, _LORA_VARIABLES])
      ]
    task_p.train.learner.bprop_variable_inclusion = [_LORA_VARIABLES]
    stack_p = task_p.model.lm_tpl.stacked_transformer_tpl
    for block_p in stack_configs.stacked_transformers(stack_p):
      self._add_adapters(block_p.transformer_layer_params_tpl)
    return task_p

  def _add_adapters(self, layer_p: LayerTpl) -> None:
    if self.LORA_TARGET_LAYERS in ('all', 'mlp'):
      linear_p = layer_p.tr_fflayer_tpl.fflayer_tpl
      linear_p.linear_tpl = self._make_adapter(
        linear_p.linear_tpl, lora_layers.LoraLinear
      )
    if self.LORA_TARGET_LAYERS in ('all', 'attention'):
      atten_p = layer_p.tr_atten_tpl
      atten_p.proj_tpl = self._make_adapter(
        atten_p.proj_tpl, lora_layers.LoraAttentionProjection
      )
      atten_p.combined_qkv_proj_tpl = self._make_adapter(
        atten_p.combined_qkv_proj_tpl, lora_layers.LoraCombinedQKVProjection
      )

  def _make_adapter(
    self, layer_p: LayerTpl, lora_class: type[base_layer.BaseLayer]
  ) -> LayerTpl:
    """Returns the config of a layer with a low-rank adapter."""
    lora_p = Config(lora_class, rank=self.LORA_RANK)
    lora_p.copy_fields_from(layer_p)
    return lora_p
