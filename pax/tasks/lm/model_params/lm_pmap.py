# SPDX-License-Identifier: Apache-2.0
"""A Transformer language model with one replica per device."""

from __future__ import annotations

from pax import base_experiment, tasks_lib
from pax.tasks.lm import default_learners, transformer_configs
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, attentions, models, transformers

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit


class TransformerLmPmapAdam(base_experiment.BaseExperiment):
  """A Transformer language model, one replica per device, trained by Adam."""

  VOCAB_SIZE = 32000
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 16
  NUM_LAYERS = 32
  # Whether to scan over the layers instead of unrolling them.
  USE_REPEATED_LAYER = False
  # Whether rows hold several segments.
  PACKED_INPUT = True

  ACTIVATION_CLS: type[activations.BaseActivation] = activations.ReLU
  USE_GATED_ACTIVATION = False
  # Whether attention projections have a bias.
  USE_BIAS = False
  # Soft cap of the absolute value of attention logits.
  ATTEN_LOGIT_CAP = 50.0
  # Dimension of Transformer-XL's relative position embedding; None for absolute
  # positions.
  REL_POS_EMB_DIM: int | None = None

  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  # Step at which the decay of the learning rate ends.
  DECAY_END = 300000
  DROPOUT_PROB = 0.0
  INPUT_DROPOUT_PROB = 0.0

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = transformer_configs.language_model_task(models.LanguageModel)
    stack_p = self._transformer_stack()
    layers_p: Config = stack_p
    if self.USE_REPEATED_LAYER:
      layers_p = transformer_configs.repeat_layer(stack_p, self.NUM_LAYERS)
    transformer_configs.maybe_setup_moe_params(stack_p)
    task_p.model.lm_tpl.set(
      packed_input=self.PACKED_INPUT,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
      stacked_transformer_tpl=layers_p,
    )
    task_p.model.lm_tpl.softmax_tpl.set(
      scale_sqrt_depth=True,
      params_init=WeightInit.Gaussian(self.MODEL_DIMS**-0.5),
    )
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    return task_p

  def _transformer_stack(self) -> Config[transformers.StackedTransformer]:
    """Returns the stack of layers, before it is repeated."""
    stack_p = Config(
      transformers.StackedTransformer,
      num_layers=self.NUM_LAYERS,
      num_heads=self.NUM_HEADS,
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      dropout_prob=self.DROPOUT_PROB,
      input_dropout_prob=self.INPUT_DROPOUT_PROB,
    )
    layer_p = stack_p.transformer_layer_params_tpl
    if self.REL_POS_EMB_DIM is not None:
      layer_p.tr_atten_tpl = Config(
        attentions.DotProductAttentionXL, rel_pos_emb_dim=self.REL_POS_EMB_DIM
      )
    layer_p.tr_atten_tpl.set(
      use_bias=self.USE_BIAS, atten_logit_cap=self.ATTEN_LOGIT_CAP
    )
    layer_p.tr_fflayer_tpl.set(
      use_gated_activation=self.USE_GATED_ACTIVATION,
      activation_tpl=Config(self.ACTIVATION_CLS),
    )
    return stack_p
