# SPDX-License-Identifier: Apache-2.0
"""Tasks that train low-rank updates of the weights of a transformer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pax import tasks_lib
from pax.checkpoints import policy_networks
from praxis import base_layer, pax_fiddle
from praxis.layers import low_rank_adaptation
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]

# The layers that may have updates.
TARGETS = ('all', 'attention', 'mlp')
# Paths of the variables that learn: not those of a teacher.
_LEARNED = (
  rf'(?!{policy_networks.FROZEN_VARIABLES}){low_rank_adaptation.FACTORS}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankSettings:
  """The low-rank updates of the weights of a model."""

  rank: int
  # The updates have the factor alpha / rank.
  alpha: float
  # One of TARGETS.
  targets: str
  # The probability that an input of an update is dropped in training.
  dropout_prob: float = 0.0
  # Whether the norms of the outputs of weights learn, too (DoRA).
  use_dora: bool = False
  # Whether a reference of the model has others, which do not learn.
  has_reference: bool = False

  def add_to_task(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    """Adds the updates to the model of a task, which learns nothing else.

    Other variables have the dtype of the computation.

    Args:
      task_p: Its model is as in `add_to_model`; changed.

    Raises:
      ValueError: See `add_to_model`.
    """
    self.add_to_model(task_p.model)
    _network(task_p.model).dtype = task_p.model.fprop_dtype
    task_p.train.learner.bprop_variable_exclusion = []
    task_p.train.learner.bprop_variable_inclusion = [_LEARNED]
    task_p.train.save_frozen_variables_once = True

  def add_to_model(self, model_p: LayerTpl) -> None:
    """Adds the updates to a model.

    Args:
      model_p: A LanguageModel or a SequenceModel; changed.

    Raises:
      ValueError: `targets` is unknown.
    """
    if self.targets not in TARGETS:
      raise ValueError(
        f'LORA_TARGET_LAYERS must be one of {list(TARGETS)}, got'
        f' {self.targets!r}'
      )
    for layer_p in self._adapted_layers(_network(model_p)):
      low_rank_adaptation.add_updates(
        layer_p,
        lora_rank=self.rank,
        lora_alpha=self.alpha,
        lora_dropout_prob=self.dropout_prob,
        use_dora=self.use_dora,
        has_reference=self.has_reference,
      )

  def _adapted_layers(self, network_p: LayerTpl) -> Iterator[LayerTpl]:
    for stack_p in _stacks(network_p):
      for stacked_p in stack_configs.stacked_transformers(stack_p):
        for layer_p in stack_configs.layer_templates(stacked_p):
          if self.targets != 'mlp':
            yield layer_p.tr_atten_tpl
            if layer_p.cross_atten_tpl is not None:
              yield layer_p.cross_atten_tpl
          if self.targets != 'attention':
            yield layer_p.tr_fflayer_tpl
        if not stacked_p.num_experts:
          continue
        # No gradient updates these biases, which are not part of the updates.
        stacked_p.moe_layer_tpl.choice_bias_update_rate = 0.0
        if self.targets != 'attention':
          yield stacked_p.moe_layer_tpl


def _network(model_p: LayerTpl) -> LayerTpl:
  is_decoder = stack_configs.has_field(model_p, 'lm_tpl')
  return model_p.lm_tpl if is_decoder else model_p.model_tpl


def _stacks(network_p: LayerTpl) -> list[LayerTpl]:
  names = (
    'stacked_transformer_tpl',
    'encoder_stacked_transformer_tpl',
    'decoder_stacked_transformer_tpl',
  )
  return [
    getattr(network_p, name)
    for name in names
    if stack_configs.has_field(network_p, name)
  ]
