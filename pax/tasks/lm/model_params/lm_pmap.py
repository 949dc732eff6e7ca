# SPDX-License-Identifier: Apache-2.0
"""A language model whose replicas each have a device."""

from __future__ import annotations

from pax import base_experiment, tasks_lib
from pax.tasks.lm import task_parts
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, attentions, models, transformers

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class TransformerLmPmapAdam(base_experiment.BaseExperiment):
  """A Transformer language model, one replica per device, trained by Adam."""

  NUM_LAYERS = 32
  VOCAB_SIZE = 32000
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4

  INPUT_DROPOUT_PROB = 0.0
  DROPOUT_PROB = 0.0
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  # Step at which the learning rate has decayed.
  DECAY_END = 300000

  USE_REPEATED_LAYER = False
  ACTIVATION_CLS = activations.ReLU
  USE_GATED_ACTIVATION = False
  PACKED_INPUT = True
  # Size of Transformer-XL's relative positions; None for absolute ones.
  REL_POS_EMB_DIM = None
  # Attention logits stay within plus and minus this.
  ATTEN_LOGIT_CAP = 50.0
  # Whether attention projections have a bias.
  USE_BIAS = False

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = task_parts.language_model_task(models.LanguageModel)
    lm_p = task_p.model.lm_tpl
    lm_p.packed_input = self.PACKED_INPUT
    lm_p.model_dims = self.MODEL_DIMS
    lm_p.vocab_size = self.VOCAB_SIZE
    lm_p.softmax_tpl.params_init = WeightInit.Gaussian(self.MODEL_DIMS**-0.5)
    lm_p.softmax_tpl.scale_sqrt_depth = True
    stack_p = self._stack()
    if self.USE_REPEATED_LAYER:
      lm_p.stacked_transformer_tpl = task_parts.repeated(
        stack_p, self.NUM_LAYERS
      )
    else:
      lm_p.stacked_transformer_tpl = stack_p
    task_parts.maybe_setup_moe_params(stack_p)
    task_parts.set_default_adam(
      task_p,
      self.LEARNING_RATE,
      self.WEIGHT_DECAY,
      decay_end=self.DECAY_END,
    )
    return task_p

  def _stack(self) -> Config[transformers.StackedTransformer]:
    """Returns the layers; `repeated` makes one of them many."""
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=self.NUM_LAYERS,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_heads=self.NUM_HEADS,
      dropout_prob=self.DROPOUT_PROB,
      input_dropout_prob=self.INPUT_DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    if self.REL_POS_EMB_DIM is not None:
      layer_p.tr_atten_tpl = Config(
        attentions.DotProductAttentionXL, rel_pos_emb_dim=self.REL_POS_EMB_DIM
      )
    layer_p.tr_atten_tpl.atten_logit_cap = self.ATTEN_LOGIT_CAP
    layer_p.tr_atten_tpl.use_bias = self.USE_BIAS
    layer_p.tr_fflayer_tpl.activation_tpl = Config(self.ACTIVATION_CLS)
    layer_p.tr_fflayer_tpl.use_gated_activation = self.USE_GATED_ACTIVATION
    return stack_p
