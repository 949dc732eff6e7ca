# SPDX-License-Identifier: Apache-2.0
"""Models of ours that compute what those of Hugging Face's transformers do.

Each function takes one of their models and returns the Config of ours and its
variables, with the same weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  attentions,
  embedding_softmax,
  multi_query_attention,
  normalizations,
  transformer_models,
  transformers,
)
from praxis.layers.embedding_softmax import rotary_scaling

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
Tree = dict[str, Any]
Config = pax_fiddle.Config

_ACTIVATIONS = {
  'gelu': lambda: Config(activations.GELU, approximate=False),
  'gelu_new': lambda: Config(activations.GELU, approximate=True),
  'relu': lambda: Config(activations.ReLU),
  'silu': lambda: Config(activations.SiLU),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ported:
  """A model of ours with another's weights."""

  config: LayerTpl
  variables: Tree


class _Weights:
  """Weights by their names in torch, in our layout."""

  def __init__(self, model: Any):
    self._state = {
      name: value.detach().numpy() for name, value in model.state_dict().items()
    }

  def __getitem__(self, name: str) -> np.ndarray:
    return self._state[name]

  def linear(self, name: str) -> np.ndarray:
    """Returns the matrix of a torch.nn.Linear, [inputs, outputs]."""
    return self._state[f'{name}.weight'].T

  def norm(self, name: str) -> Tree:
    """Returns the variables of a LayerNorm or RmsNorm."""
    norm = {'scale': self._state[f'{name}.weight']}
    if f'{name}.bias' in self._state:
      norm['bias'] = self._state[f'{name}.bias']
    return norm

  def heads(self, name: str, num_heads: int) -> Tree:
    """Returns the variables of a projection to heads, [D, N, H]."""
    weight = self.linear(name)
    return {'w': weight.reshape(weight.shape[0], num_heads, -1)}

  def from_heads(self, name: str, num_heads: int) -> Tree:
    """Returns the variables of a projection of heads, stored as [D, N, H]."""
    weight = self.linear(name)
    return {'w': weight.T.reshape(weight.shape[1], num_heads, -1)}


def gpt2(model: Any) -> Ported:
  """Returns the TransformerLm that is a GPT2LMHeadModel."""
  cfg, weights = model.config, _Weights(model)
  norm = Config(
    normalizations.LayerNorm,
    direct_scale=True,
    epsilon=cfg.layer_norm_epsilon,
  )
  attention = Config(
    attentions.DotProductAttention, internal_enable_per_dim_scale=False
  )
  feed_forward = Config(
    transformers.TransformerFeedForward,
    activation_tpl=_ACTIVATIONS[cfg.activation_function](),
  )
  config = _decoder(
    cfg, cfg.n_inner or 4 * cfg.n_embd, norm, attention, feed_forward
  ).set(
    position_emb_tpl=Config(
      embedding_softmax.TrainablePositionalEmbedding,
      max_seq_length=cfg.n_positions,
      lookup_style='index',
    ),
    softmax_tpl=Config(
      embedding_softmax.NClassMajorSharedEmbeddingSoftmax, use_bias=False
    ),
  )
  layers = [
    _gpt2_layer(weights, f'transformer.h.{i}', cfg.n_head)
    for i in range(cfg.n_layer)
  ]
  params = {
    'position_emb': {'emb_var': weights['transformer.wpe.weight']},
    'softmax': {'w': weights['transformer.wte.weight']},
    'final_ln': weights.norm('transformer.ln_f'),
    'transformer': _stack(layers),
  }
  return Ported(config=config, variables={'params': params})


def _gpt2_layer(weights: _Weights, name: str, num_heads: int) -> Tree:
  # GPT-2 stores matrices as [inputs, outputs].
  def split(at: str) -> list[np.ndarray]:
    thirds = np.split(weights[f'{name}.attn.c_attn.{at}'], 3, axis=-1)
    return [x.reshape(*x.shape[:-1], num_heads, -1) for x in thirds]

  def linear(at: str) -> Tree:
    full = f'{name}.mlp.{at}'
    return {
      'linear': {'w': weights[f'{full}.weight']},
      'bias': {'b': weights[f'{full}.bias']},
    }

  projections = zip(
    ('query', 'key', 'value'), split('weight'), split('bias'), strict=True
  )
  attention = {at: {'w': w, 'b': b} for at, w, b in projections}
  post = weights[f'{name}.attn.c_proj.weight'].T
  attention['post'] = {
    'w': post.reshape(post.shape[0], num_heads, -1),
    'b': weights[f'{name}.attn.c_proj.bias'],
  }
  return {
    'layer_norm': weights.norm(f'{name}.ln_1'),
    'self_attention': attention,
    'ff_layer': {
      'layer_norm': weights.norm(f'{name}.ln_2'),
      'ffn_layer1': linear('c_fc'),
      'ffn_layer2': linear('c_proj'),
    },
  }


def llama(model: Any) -> Ported:
  """Returns the TransformerLm that is a LlamaForCausalLM."""
  cfg, weights = model.config, _Weights(model)
  norm = Config(normalizations.RmsNorm, epsilon=cfg.rms_norm_eps)
  attention = Config(
    multi_query_attention.MultiQueryDotProductAttention,
    num_kv_heads=cfg.num_key_value_heads,
    dim_per_head=cfg.head_dim,
    use_bias=False,
    scale_query_by_dim_per_head=True,
    use_rotary_position_emb=True,
    rotary_position_emb_tpl=_rotary(cfg.rope_parameters),
  )
  feed_forward = Config(
    transformers.TransformerFeedForward,
    has_bias=False,
    use_gated_activation=True,
    activation_tpl=_ACTIVATIONS[cfg.hidden_act](),
  )
  softmax = Config(embedding_softmax.FullSoftmax)
  softmax.feed_forward_tpl.has_bias = False
  config = _decoder(
    cfg, cfg.intermediate_size, norm, attention, feed_forward
  ).set(
    position_emb_tpl=None,
    separate_embedding_tpl=Config(embedding_softmax.Embedding),
    softmax_tpl=softmax,
  )
  layers = [
    _llama_layer(weights, f'model.layers.{i}', cfg)
    for i in range(cfg.num_hidden_layers)
  ]
  params = {
    'embedding_lookup': {'emb_var': weights['model.embed_tokens.weight']},
    'softmax': {'logits_ffn': {'linear': {'w': weights.linear('lm_head')}}},
    'final_ln': weights.norm('model.norm'),
    'transformer': _stack(layers),
  }
  return Ported(config=config, variables={'params': params})


def _rotary(rope: dict[str, Any]) -> LayerTpl:
  """Returns the rotary embedding of a `rope_parameters`."""
  rotary = Config(
    embedding_softmax.RotaryPositionalEmbedding,
    max_timescale=int(rope['rope_theta']),
  )
  if rope['rope_type'] == 'linear':
    rotary.scaling_tpl = Config(
      rotary_scaling.LinearRotaryScaling, factor=rope['factor']
    )
  elif rope['rope_type'] == 'llama3':
    rotary.scaling_tpl = Config(
      rotary_scaling.Llama3RotaryScaling,
      factor=rope['factor'],
      low_freq_factor=rope['low_freq_factor'],
      high_freq_factor=rope['high_freq_factor'],
      original_max_position=rope['original_max_position_embeddings'],
    )
  elif rope['rope_type'] != 'default':
    raise ValueError(
      "rope_type must be 'default', 'linear' or 'llama3', got "
      f'{rope["rope_type"]!r}'
    )
  return rotary


def _llama_layer(weights: _Weights, name: str, cfg: Any) -> Tree:
  attn, mlp = f'{name}.self_attn', f'{name}.mlp'
  num_heads = cfg.num_attention_heads

  def shared(at: str) -> Tree:
    heads = weights.heads(f'{attn}.{at}', cfg.num_key_value_heads)
    # A single head of keys has no axis.
    one = cfg.num_key_value_heads == 1
    return {'w': heads['w'][:, 0]} if one else heads

  return {
    'layer_norm': weights.norm(f'{name}.input_layernorm'),
    'self_attention': {
      'query': weights.heads(f'{attn}.q_proj', num_heads),
      'key': shared('k_proj'),
      'value': shared('v_proj'),
      'post': weights.from_heads(f'{attn}.o_proj', num_heads),
    },
    'ff_layer': {
      'layer_norm': weights.norm(f'{name}.post_attention_layernorm'),
      'ffn_layer1': {'linear': {'w': weights.linear(f'{mlp}.up_proj')}},
      'ffn_layer1_gate': {'linear': {'w': weights.linear(f'{mlp}.gate_proj')}},
      'ffn_layer2': {'linear': {'w': weights.linear(f'{mlp}.down_proj')}},
    },
  }


def t5(model: Any) -> Ported:
  """Returns the TransformerEncoderDecoder that is a T5ForConditionalGeneration.

  Also of versions 1.1, which have gated blocks and a softmax of their own.
  """
  cfg, weights = model.config, _Weights(model)
  norm = Config(normalizations.RmsNorm, epsilon=cfg.layer_norm_epsilon)
  table = weights['shared.weight']
  is_tied = np.array_equal(table, weights['lm_head.weight'])
  softmax = Config(
    embedding_softmax.NClassMajorSharedEmbeddingSoftmax
    if is_tied
    else embedding_softmax.FullSoftmax,
    num_classes=cfg.vocab_size,
    scale_before_logits=cfg.scale_decoder_outputs,
  )
  config = Config(
    transformer_models.TransformerEncoderDecoder,
    model_dims=cfg.d_model,
    position_emb_tpl=None,
    encoder_stacked_transformer_tpl=_t5_stack(cfg, norm, is_decoder=False),
    decoder_stacked_transformer_tpl=_t5_stack(cfg, norm, is_decoder=True),
    encoder_ln_tpl=norm.clone(),
    decoder_ln_tpl=norm.clone(),
    softmax_tpl=softmax,
  )
  params = {
    'encoder': _stack(_t5_layers(weights, 'encoder', cfg)),
    'decoder': _stack(_t5_layers(weights, 'decoder', cfg)),
    'encoder_ln': weights.norm('encoder.final_layer_norm'),
    'decoder_ln': weights.norm('decoder.final_layer_norm'),
  }
  if is_tied:
    softmax.use_bias = False
    params['softmax'] = {'w': table}
  else:
    softmax.feed_forward_tpl.has_bias = False
    config.decoder_embedding_tpl = Config(
      embedding_softmax.Embedding, num_classes=cfg.vocab_size
    )
    linear = {'w': weights.linear('lm_head')}
    params['softmax'] = {'logits_ffn': {'linear': linear}}
    params['decoder_embedding_lookup'] = {'emb_var': table}
  return Ported(config=config, variables={'params': params})


def _t5_stack(cfg: Any, norm: LayerTpl, *, is_decoder: bool) -> LayerTpl:
  # Initial weights make up for the scale that queries do not have.
  attention = Config(
    attentions.DotProductAttention,
    dim_per_head=cfg.d_kv,
    use_bias=False,
    internal_enable_query_scale=False,
  )
  bias = Config(
    attentions.RelativeBias,
    bidirectional=not is_decoder,
    relative_attention_num_buckets=cfg.relative_attention_num_buckets,
    relative_attention_max_distance=cfg.relative_attention_max_distance,
  )
  layer = Config(
    transformers.Transformer,
    ln_tpl=norm.clone(),
    tr_atten_tpl=attention.clone().set(relative_bias_tpl=bias),
    cross_atten_tpl=attention,
    tr_fflayer_tpl=Config(
      transformers.TransformerFeedForward,
      ln_tpl=norm.clone(),
      has_bias=False,
      use_gated_activation=cfg.is_gated_act,
      activation_tpl=_ACTIVATIONS[cfg.dense_act_fn](),
    ),
  )
  return Config(
    transformers.StackedTransformer,
    num_layers=cfg.num_decoder_layers if is_decoder else cfg.num_layers,
    num_heads=cfg.num_heads,
    model_dims=cfg.d_model,
    hidden_dims=cfg.d_ff,
    mask_self_attention=is_decoder,
    use_cross_attention=is_decoder,
    transformer_layer_params_tpl=layer,
  )


def _t5_layers(weights: _Weights, side: str, cfg: Any) -> list[Tree]:
  bias = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
  is_decoder = side == 'decoder'
  count = cfg.num_decoder_layers if is_decoder else cfg.num_layers
  layers = []
  for i in range(count):
    name = f'{side}.block.{i}.layer'
    own = _t5_attention(weights, f'{name}.0.SelfAttention', cfg.num_heads)
    # All layers share the bias of the first.
    own['relative_bias'] = {'wrb': weights[bias].T}
    layer = {
      'layer_norm': weights.norm(f'{name}.0.layer_norm'),
      'self_attention': own,
      'ff_layer': _t5_feed_forward(weights, f'{name}.{1 + is_decoder}', cfg),
    }
    if is_decoder:
      layer['cross_layer_norm'] = weights.norm(f'{name}.1.layer_norm')
      layer['cross_attention'] = _t5_attention(
        weights, f'{name}.1.EncDecAttention', cfg.num_heads
      )
    layers.append(layer)
  return layers


def _t5_attention(weights: _Weights, name: str, num_heads: int) -> Tree:
  return {
    'query': weights.heads(f'{name}.q', num_heads),
    'key': weights.heads(f'{name}.k', num_heads),
    'value': weights.heads(f'{name}.v', num_heads),
    'post': weights.from_heads(f'{name}.o', num_heads),
  }


def _t5_feed_forward(weights: _Weights, name: str, cfg: Any) -> Tree:
  linear = lambda at: {
    'linear': {'w': weights.linear(f'{name}.DenseReluDense.{at}')}
  }
  block = {
    'layer_norm': weights.norm(f'{name}.layer_norm'),
    'ffn_layer2': linear('wo'),
  }
  if not cfg.is_gated_act:
    return {**block, 'ffn_layer1': linear('wi')}
  gate, first = linear('wi_0'), linear('wi_1')
  return {**block, 'ffn_layer1': first, 'ffn_layer1_gate': gate}


def _decoder(
  cfg: Any,
  hidden_dims: int,
  norm: LayerTpl,
  attention: LayerTpl,
  feed_forward: LayerTpl,
) -> LayerTpl:
  """Returns a TransformerLm of such layers, without embeddings."""
  layer = Config(
    transformers.Transformer,
    ln_tpl=norm.clone(),
    tr_atten_tpl=attention,
    tr_fflayer_tpl=feed_forward.set(ln_tpl=norm.clone()),
  )
  return Config(
    transformer_models.TransformerLm,
    model_dims=cfg.hidden_size,
    vocab_size=cfg.vocab_size,
    final_ln_tpl=norm.clone(),
    stacked_transformer_tpl=Config(
      transformers.StackedTransformer,
      num_layers=cfg.num_hidden_layers,
      num_heads=cfg.num_attention_heads,
      hidden_dims=hidden_dims,
      transformer_layer_params_tpl=layer,
    ),
  )


def _stack(layers: list[Tree]) -> Tree:
  return {f'x_layers_{i}': layer for i, layer in enumerate(layers)}
