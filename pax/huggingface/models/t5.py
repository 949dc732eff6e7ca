# SPDX-License-Identifier: Apache-2.0
"""T5 and T5 1.1: encoder-decoders with relative position biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import jax.numpy as jnp

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

# The relative bias, which all layers of a stack share.
_SHARED_BIAS = 'relative_bias'


class _Stack(transformers.StackedTransformer):
  """Layers that share one relative bias, also within a decode loop."""

  is_shared_weight_root: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5:
  """The settings of a model."""

  vocab_size: int
  model_dims: int
  dim_per_head: int
  hidden_dims: int
  num_encoder_layers: int
  num_decoder_layers: int
  num_heads: int
  num_buckets: int
  max_distance: int
  norm_epsilon: float
  # Name of the activation of the feed-forward layers, and whether it is that of
  # a gate (T5 1.1).
  activation: str
  is_gated: bool
  # Whether the softmax has the weights of the embedding, and whether its inputs
  # are divided by √(model_dims).
  is_tied: bool
  scales_logits: bool

  def model(self) -> LayerTpl:
    """Returns the Config of the SequenceModel."""
    softmax = Config(
      embedding_softmax.NClassMajorSharedEmbeddingSoftmax
      if self.is_tied
      else embedding_softmax.FullSoftmax,
      num_classes=self.vocab_size,
      scale_before_logits=self.scales_logits,
    )
    network = Config(
      transformer_models.TransformerEncoderDecoder,
      model_dims=self.model_dims,
      position_emb_tpl=None,
      encoder_stacked_transformer_tpl=self._stack(is_decoder=False),
      decoder_stacked_transformer_tpl=self._stack(is_decoder=True),
      encoder_ln_tpl=self._norm(),
      decoder_ln_tpl=self._norm(),
      softmax_tpl=softmax,
    )
    if self.is_tied:
      softmax.use_bias = False
    else:
      softmax.feed_forward_tpl.has_bias = False
      network.decoder_embedding_tpl = Config(
        embedding_softmax.Embedding, num_classes=self.vocab_size
      )
    return Config(models.SequenceModel, model_tpl=network)

  def weights(self) -> Iterator[WeightLayout]:
    """Yields the layouts of all weights."""
    vocab, model = self.vocab_size, self.model_dims
    embedding = (
      'softmax/w' if self.is_tied else 'decoder_embedding_lookup/emb_var'
    )
    yield weight_layouts.same(
      'shared.weight', f'params/model/{embedding}', vocab, model
    )
    for side, num_layers in (
      ('encoder', self.num_encoder_layers),
      ('decoder', self.num_decoder_layers),
    ):
      yield from self._side_weights(side, num_layers)
    if not self.is_tied:
      yield weight_layouts.transposed(
        'lm_head.weight',
        'params/model/softmax/logits_ffn/linear/w',
        vocab,
        model,
      )

  def _norm(self) -> LayerTpl:
    return Config(
      normalizations.RmsNorm,
      epsilon=self.norm_epsilon,
      intermediate_dtype=jnp.float32,
    )

  def _stack(self, *, is_decoder: bool) -> LayerTpl:
    # Initial weights make up for the scale that queries do not have.
    attention = Config(
      attentions.DotProductAttention,
      dim_per_head=self.dim_per_head,
      use_bias=False,
      internal_enable_query_scale=False,
    )
    bias = Config(
      attentions.RelativeBias,
      bidirectional=not is_decoder,
      relative_attention_num_buckets=self.num_buckets,
      relative_attention_max_distance=self.max_distance,
      shared_weight_layer_id=_SHARED_BIAS,
    )
    layer = Config(
      transformers.Transformer,
      ln_tpl=self._norm(),
      tr_atten_tpl=attention.clone().set(relative_bias_tpl=bias),
      cross_atten_tpl=attention,
      tr_fflayer_tpl=Config(
        transformers.TransformerFeedForward,
        ln_tpl=self._norm(),
        has_bias=False,
        use_gated_activation=self.is_gated,
        activation_tpl=activation(self.activation),
      ),
    )
    return Config(
      _Stack,
      num_layers=(
        self.num_decoder_layers if is_decoder else self.num_encoder_layers
      ),
      num_heads=self.num_heads,
      model_dims=self.model_dims,
      hidden_dims=self.hidden_dims,
      mask_self_attention=is_decoder,
      use_cross_attention=is_decoder,
      transformer_layer_params_tpl=layer,
    )

  def _side_weights(self, side: str, num_layers: int) -> Iterator[WeightLayout]:
    # All layers have the bias of the first.
    yield weight_layouts.split(
      f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight',
      f'params/model/{side}/{_SHARED_BIAS}/wrb',
      (self.num_buckets, self.num_heads),
      (self.num_buckets, self.num_heads),
      (1, 0),
    )
    for i in range(num_layers):
      source, target = (
        f'{side}.block.{i}.layer',
        f'params/model/{side}/x_layers_{i}',
      )
      yield self._norm_weight(f'{source}.0.layer_norm', f'{target}/layer_norm')
      yield from self._attention_weights(
        f'{source}.0.SelfAttention', f'{target}/self_attention'
      )
      last = 1
      if side == 'decoder':
        last = 2
        yield self._norm_weight(
          f'{source}.1.layer_norm', f'{target}/cross_layer_norm'
        )
        yield from self._attention_weights(
          f'{source}.1.EncDecAttention', f'{target}/cross_attention'
        )
      yield self._norm_weight(
        f'{source}.{last}.layer_norm', f'{target}/ff_layer/layer_norm'
      )
      yield from self._feed_forward_weights(
        f'{source}.{last}.DenseReluDense', f'{target}/ff_layer'
      )
    yield self._norm_weight(
      f'{side}.final_layer_norm', f'params/model/{side}_ln'
    )

  def _attention_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    model, heads = self.model_dims, (self.num_heads, self.dim_per_head)
    size = self.num_heads * self.dim_per_head
    for tensor, variable in (('q', 'query'), ('k', 'key'), ('v', 'value')):
      yield weight_layouts.split(
        f'{source}.{tensor}.weight',
        f'{target}/{variable}/w',
        (size, model),
        (*heads, model),
        (2, 0, 1),
      )
    yield weight_layouts.from_heads(
      f'{source}.o.weight', f'{target}/post/w', model, heads
    )

  def _feed_forward_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    model, hidden = self.model_dims, self.hidden_dims
    first = {'wi': 'ffn_layer1'}
    if self.is_gated:
      first = {'wi_0': 'ffn_layer1_gate', 'wi_1': 'ffn_layer1'}
    for tensor, layer in first.items():
      yield weight_layouts.transposed(
        f'{source}.{tensor}.weight', f'{target}/{layer}/linear/w', hidden, model
      )
    yield weight_layouts.transposed(
      f'{source}.wo.weight', f'{target}/ffn_layer2/linear/w', model, hidden
    )

  def _norm_weight(self, source: str, target: str) -> WeightLayout:
    return weight_layouts.same(
      f'{source}.weight', f'{target}/scale', self.model_dims
    )


def read_t5(config: Json) -> T5:
  """Returns the settings of a T5.

  Raises:
    ValueError: A setting is not supported.
  """
  projection = config.get('feed_forward_proj', 'relu')
  gate, _, activation = projection.rpartition('-')
  if gate not in ('', 'gated'):
    raise ValueError(
      "feed_forward_proj in config.json must be 'gated-' and an activation, or"
      f' an activation, got {projection!r}'
    )
  num_layers = config_settings.size(config, 'num_layers')
  # T5 1.1 is marked by tie_word_embeddings=false, or in newer files by
  # scale_decoder_outputs=false.
  is_tied = config.get('tie_word_embeddings', True)
  return T5(
    vocab_size=config_settings.size(config, 'vocab_size'),
    model_dims=config_settings.size(config, 'd_model'),
    dim_per_head=config_settings.size(config, 'd_kv'),
    hidden_dims=config_settings.size(config, 'd_ff'),
    num_encoder_layers=num_layers,
    num_decoder_layers=config.get('num_decoder_layers') or num_layers,
    num_heads=config_settings.size(config, 'num_heads'),
    num_buckets=config.get('relative_attention_num_buckets', 32),
    max_distance=config.get('relative_attention_max_distance', 128),
    norm_epsilon=config.get('layer_norm_epsilon', 1e-6),
    # In the releases the gate's GELU is the approximation.
    activation='gelu_new' if projection == 'gated-gelu' else activation,
    is_gated=gate == 'gated',
    is_tied=is_tied,
    scales_logits=config.get('scale_decoder_outputs', is_tied),
  )
