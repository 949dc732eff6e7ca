# SPDX-License-Identifier: Apache-2.0
"""GPT-2: a decoder with learned positions and layer norms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pax.huggingface import weight_layouts
from pax.huggingface.layers.activations import activation
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  embedding_softmax,
  models,
  normalizations,
  transformer_models,
  transformers,
)

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpt2:
  """The settings of a model."""

  vocab_size: int
  max_positions: int
  model_dims: int
  hidden_dims: int
  num_layers: int
  num_heads: int
  norm_epsilon: float
  # Name of the activation of the feed-forward layers.
  activation: str
  # Whether attention logits are divided by √H.
  scales_attention: bool = True

  def model(self) -> LayerTpl:
    """Returns the Config of the LanguageModel."""
    layer = Config(
      transformers.Transformer,
      ln_tpl=self._norm(),
      tr_atten_tpl=Config(
        attentions.DotProductAttention,
        combine_qkv=True,
        internal_enable_query_scale=self.scales_attention,
        internal_enable_per_dim_scale=False,
      ),
      tr_fflayer_tpl=Config(
        transformers.TransformerFeedForward,
        activation_tpl=activation(self.activation),
        ln_tpl=self._norm(),
      ),
    )
    lm = Config(
      transformer_models.TransformerLm,
      model_dims=self.model_dims,
      vocab_size=self.vocab_size,
      final_ln_tpl=self._norm(),
      position_emb_tpl=Config(
        embedding_softmax.TrainablePositionalEmbedding,
        max_seq_length=self.max_positions,
        lookup_style='index',
      ),
      softmax_tpl=Config(
        embedding_softmax.NClassMajorSharedEmbeddingSoftmax, use_bias=False
      ),
      stacked_transformer_tpl=Config(
        transformers.StackedTransformer,
        num_layers=self.num_layers,
        num_heads=self.num_heads,
        hidden_dims=self.hidden_dims,
        transformer_layer_params_tpl=layer,
      ),
    )
    return Config(models.LanguageModel, lm_tpl=lm)

  def weights(self) -> Iterator[WeightLayout]:
    """Yields the layouts of all weights."""
    model = self.model_dims
    yield weight_layouts.same(
      'transformer.wte.weight', 'params/lm/softmax/w', self.vocab_size, model
    )
    yield weight_layouts.same(
      'transformer.wpe.weight',
      'params/lm/position_emb/emb_var',
      self.max_positions,
      model,
    )
    for i in range(self.num_layers):
      yield from self._layer_weights(
        f'transformer.h.{i}', f'params/lm/transformer/x_layers_{i}'
      )
    yield from self._norm_weights('transformer.ln_f', 'params/lm/final_ln')

  def _norm(self) -> LayerTpl:
    return Config(
      normalizations.LayerNorm,
      direct_scale=True,
      epsilon=self.norm_epsilon,
      reductions_in_fp32=True,
    )

  def _layer_weights(self, source: str, target: str) -> Iterator[WeightLayout]:
    yield from self._norm_weights(f'{source}.ln_1', f'{target}/layer_norm')
    yield from self._attention_weights(
      f'{source}.attn', f'{target}/self_attention'
    )
    yield from self._norm_weights(
      f'{source}.ln_2', f'{target}/ff_layer/layer_norm'
    )
    model, hidden = self.model_dims, self.hidden_dims
    # GPT-2 stores matrices as [inputs, outputs].
    for projection, layer, inputs, outputs in (
      ('c_fc', 'ffn_layer1', model, hidden),
      ('c_proj', 'ffn_layer2', hidden, model),
    ):
      tensor, variable = (
        f'{source}.mlp.{projection}',
        f'{target}/ff_layer/{layer}',
      )
      yield weight_layouts.same(
        f'{tensor}.weight', f'{variable}/linear/w', inputs, outputs
      )
      yield weight_layouts.same(f'{tensor}.bias', f'{variable}/bias/b', outputs)

  def _attention_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    model, heads = self.model_dims, self.num_heads
    head = model // heads
    yield weight_layouts.split(
      f'{source}.c_attn.weight',
      f'{target}/combined_qkv/w',
      (model, 3 * model),
      (model, 3, heads, head),
      (1, 0, 2, 3),
    )
    yield weight_layouts.split(
      f'{source}.c_attn.bias',
      f'{target}/combined_qkv/b',
      (3 * model,),
      (3, heads, head),
    )
    post = weight_layouts.split(
      f'{source}.c_proj.weight',
      f'{target}/post/w',
      (model, model),
      (heads, head, model),
      (2, 0, 1),
    )
    yield dataclasses.replace(post, has_outputs_first=True)
    yield weight_layouts.same(
      f'{source}.c_proj.bias', f'{target}/post/b', model
    )

  def _norm_weights(self, source: str, target: str) -> Iterator[WeightLayout]:
    for tensor, variable in (('weight', 'scale'), ('bias', 'bias')):
      yield weight_layouts.same(
        f'{source}.{tensor}', f'{target}/{variable}', self.model_dims
      )


def read_gpt2(config: Json) -> Gpt2:
  """Returns the settings of a GPT-2.

  Raises:
    ValueError: A setting is not supported.
  """
  for name in ('scale_attn_by_inverse_layer_idx', 'add_cross_attention'):
    if config.get(name):
      raise ValueError(
        f'{name} in config.json must be false, got {config[name]}; no layer of'
        ' praxis computes it'
      )
  if not config.get('tie_word_embeddings', True):
    raise ValueError(
      'tie_word_embeddings in config.json of a gpt2 must be true, got false'
    )
  return Gpt2(
    vocab_size=config_settings.size(config, 'vocab_size'),
    max_positions=config_settings.size(config, 'n_positions'),
    model_dims=config_settings.size(config, 'n_embd'),
    hidden_dims=config.get('n_inner')
    or 4 * config_settings.size(config, 'n_embd'),
    num_layers=config_settings.size(config, 'n_layer'),
    num_heads=config_settings.size(config, 'n_head'),
    norm_epsilon=config.get('layer_norm_epsilon', 1e-5),
    activation=config.get('activation_function', 'gelu_new'),
    scales_attention=config.get('scale_attn_weights', True),
  )
