# SPDX-License-Identifier: Apache-2.0
"""Decoders with rotary positions, RMS norms and gated feed-forward layers.

Llama, Mistral, Mixtral, Qwen, Gemma, gpt-oss, DeepSeek, OLMo, Phi, SmolLM, GLM,
Granite and Kimi differ in the fields of `RotaryDecoder` only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from pax.huggingface import layer_norms, weight_layouts
from pax.huggingface.delta_nets import DeltaNets
from pax.huggingface.gpt_oss import GptOssExperts
from pax.huggingface.latent_attention import LatentAttention
from pax.huggingface.mixture_of_experts import MixtureOfExperts
from pax.huggingface.mtp_modules import MtpModules
from pax.huggingface.query_temperatures import QueryTemperature
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  embedding_softmax,
  models,
  multi_query_attention,
  normalizations,
  transformer_models,
  transformers,
)
from praxis.layers.embedding_softmax import rotary_scaling

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_ACTIVATIONS = {
  'gelu': lambda: Config(activations.GELU, approximate=False),
  'gelu_new': lambda: Config(activations.GELU, approximate=True),
  'gelu_pytorch_tanh': lambda: Config(activations.GELU, approximate=True),
  'relu': lambda: Config(activations.ReLU),
  'silu': lambda: Config(activations.SiLU),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryDecoder:
  """The settings of a model."""

  vocab_size: int
  model_dims: int
  hidden_dims: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  dim_per_head: int
  norm_epsilon: float
  # `rope_parameters` of config.json: rope_theta, rope_type and its settings.
  rope: Mapping[str, Any]
  # Those of layers with a window; None for the same.
  window_rope: Mapping[str, Any] | None = None
  # Whether each layer rotates queries and keys; () for all layers.
  rotary_layers: tuple[bool, ...] = ()
  # Number of channels of a head, from the first on, that are rotated; None for
  # all.
  rotary_dims: int | None = None
  # Whether two consecutive channels are a pair, instead of one in each half.
  has_interleaved_pairs: bool = False
  # Whether the softmax has the weights of the embedding.
  is_tied: bool
  # Name of the activation of the gate.
  activation: str
  # Biases of queries, keys and values; of the attention's output; of the
  # feed-forward layers.
  has_qkv_bias: bool = False
  has_output_bias: bool = False
  has_ffn_bias: bool = False
  # Whether queries and keys are normalized before their rotation.
  has_head_norms: bool = False
  # Whether they are instead with all heads together.
  has_projection_norms: bool = False
  # Whether they are divided by their root mean square after their rotation.
  has_rotated_norms: bool = False
  # Factors of queries that grow with the position; None for none.
  query_temperature: QueryTemperature | None = None
  # Whether each head has a logit that attends to no value.
  has_sinks: bool = False
  # Whether attended values are multiplied by the sigmoid of a projection, which
  # is in the tensor of queries.
  has_output_gate: bool = False
  # Number of positions that a query sees, itself included, for each layer; None
  # for all.
  windows: tuple[int | None, ...] = ()
  # Number of positions of the chunks that a query sees keys of, likewise.
  chunk_sizes: tuple[int | None, ...] = ()
  # The factor of queries; None for 1/√(dim_per_head).
  query_scale: float | None = None
  # Soft caps; None for none.
  attention_logit_cap: float | None = None
  logit_cap: float | None = None
  # Whether embeddings are multiplied by √(model_dims).
  scales_embedding: bool = False
  # Other factors of embeddings, of the outputs of attention and feed-forward
  # layers, and of the input of the softmax.
  embedding_scale: float = 1.0
  residual_scale: float = 1.0
  head_scale: float = 1.0
  # Whether norms store their scale minus 1.
  has_offset_norms: bool = False
  norms: layer_norms.LayerNorms = layer_norms.INPUTS
  # Whether one tensor has queries, keys and values, without biases, and one the
  # gates of feed-forward layers and what they multiply.
  has_fused_qkv: bool = False
  has_fused_gates: bool = False
  # Name of the tensors of feed-forward layers in their layer.
  feed_forward_tensors: str = 'mlp'
  # Attention to latents instead; None for none.
  latent_attention: LatentAttention | None = None
  # The layers without attention; None for no layer.
  delta_nets: DeltaNets | None = None
  # The feed-forward layers that are mixtures of experts; None for no layer.
  experts: MixtureOfExperts | GptOssExperts | None = None
  # Those that predict the tokens after the next one.
  mtp_modules: MtpModules = MtpModules()

  def __post_init__(self) -> None:
    # Before weights are read.
    for kinds in (self.windows, self.chunk_sizes):
      if kinds and len(kinds) != self.num_layers:
        raise ValueError(
          'layer_types in config.json must have one for each of'
          f' {self.num_layers} layers, got {len(kinds)}; use the file that'
          ' save_pretrained writes'
        )
    rotary_embedding(self.rope)
    if self.window_rope is not None:
      rotary_embedding(self.window_rope)

  def model(self) -> LayerTpl:
    """Returns the Config of the LanguageModel."""
    stack = Config(
      transformers.StackedTransformer,
      num_layers=self.num_layers,
      num_heads=self.num_heads,
      dim_per_head=self.dim_per_head,
      hidden_dims=self.hidden_dims,
      transformer_layer_params_tpl=self._layers(),
    )
    if self.experts is not None:
      self.experts.set_layers(
        stack,
        activation_tpl=activation(self.activation),
        ln_tpl=self._norm(),
      )
    if any(window is not None for window in self.windows):
      stack.local_window_size = [
        None if window is None else (window - 1, 0) for window in self.windows
      ]
    lm = Config(
      transformer_models.TransformerLm,
      model_dims=self.model_dims,
      vocab_size=self.vocab_size,
      position_emb_tpl=None,
      final_ln_tpl=self._norm(),
      stacked_transformer_tpl=stack,
      softmax_tpl=self._softmax(),
    )
    if not self.is_tied:
      lm.separate_embedding_tpl = Config(
        embedding_softmax.Embedding,
        scale_sqrt_depth=self.scales_embedding,
        embedding_scale=self.embedding_scale,
      )
    if num_modules := len(self.mtp_modules.sources):
      lm.mtp_tpl = Config(
        transformer_models.MultiTokenPrediction, num_modules=num_modules
      )
      lm.mtp_tpl.module_tpl.ln_tpl = self._norm()
    return Config(models.LanguageModel, lm_tpl=lm)

  def weights(self) -> Iterator[WeightLayout]:
    """Yields the layouts of all weights."""
    vocab, model = self.vocab_size, self.model_dims
    embedding = 'softmax/w' if self.is_tied else 'embedding_lookup/emb_var'
    yield weight_layouts.same(
      'model.embed_tokens.weight', f'params/lm/{embedding}', vocab, model
    )
    for i in range(self.num_layers):
      yield from self._layer_weights(
        f'model.layers.{i}', f'params/lm/transformer/x_layers_{i}', i
      )
    for i, source in enumerate(self.mtp_modules.sources):
      target = self.mtp_modules.variables(i)
      yield from self.mtp_modules.weights(i, self.model_dims)
      yield from self._layer_weights(
        source, f'{target}/transformer/x_layers_0', self.num_layers - 1
      )
    yield self._norm_weight('model.norm', 'params/lm/final_ln')
    if not self.is_tied:
      yield weight_layouts.transposed(
        'lm_head.weight',
        'params/lm/softmax/logits_ffn/linear/w',
        vocab,
        model,
      )

  def _norm(self) -> LayerTpl:
    return Config(
      normalizations.RmsNorm,
      epsilon=self.norm_epsilon,
      direct_scale=not self.has_offset_norms,
      intermediate_dtype=jnp.float32,
    )

  def _softmax(self) -> LayerTpl:
    if self.is_tied:
      return Config(
        embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
        use_bias=False,
        scale_sqrt_depth=self.scales_embedding,
        embedding_scale=self.embedding_scale,
        input_scale=self.head_scale,
        soft_cap_logits=self.logit_cap,
      )
    softmax = Config(
      embedding_softmax.FullSoftmax,
      input_scale=self.head_scale,
      soft_cap_logits=self.logit_cap,
    )
    softmax.feed_forward_tpl.has_bias = False
    return softmax

  def _layers(self) -> LayerTpl | list[LayerTpl]:
    """Returns the layer, or all layers if they differ in their mixers."""
    mixers = [self._mixer(i) for i in range(self.num_layers)]
    if all(mixer == mixers[0] for mixer in mixers):
      return self._layer(*mixers[0])
    return [self._layer(*mixer) for mixer in mixers]

  def _mixer(
    self, index: int
  ) -> tuple[DeltaNets | Mapping[str, Any] | None, int | None]:
    """Returns the Gated DeltaNets or the rope of a layer, and its chunks."""
    if self.delta_nets is not None and index in self.delta_nets.layers:
      return self.delta_nets, None
    chunk_size = self.chunk_sizes[index] if self.chunk_sizes else None
    return self._rope_of_layer(index), chunk_size

  def _rope_of_layer(self, index: int) -> Mapping[str, Any] | None:
    """Returns the `rope_parameters` of a layer; None if it does not rotate."""
    if self.rotary_layers and not self.rotary_layers[index]:
      return None
    has_window = self.windows and self.windows[index] is not None
    if has_window and self.window_rope is not None:
      return self.window_rope
    return self.rope

  def _layer(
    self, mixer: DeltaNets | Mapping[str, Any] | None, chunk_size: int | None
  ) -> LayerTpl:
    """Returns the layer with a Gated DeltaNet, or the attention of a rope."""
    if isinstance(mixer, DeltaNets):
      attention = mixer.layer(self._norm().set(direct_scale=True))
    else:
      attention = self._rotary_attention(mixer)
    if chunk_size is not None:
      attention.attention_chunk_size = chunk_size
    feed_forward = Config(
      transformers.TransformerFeedForward,
      has_bias=self.has_ffn_bias,
      use_gated_activation=True,
      activation_tpl=activation(self.activation),
      ln_tpl=self._norm(),
      residual_weight=self.residual_scale,
    )
    return Config(
      transformers.Transformer,
      atten_residual_weight=self.residual_scale,
      norm_policy=self.norms.policy,
      ln_tpl=self._norm(),
      tr_atten_tpl=attention,
      tr_fflayer_tpl=feed_forward,
    )

  def _rotary_attention(self, rope: Mapping[str, Any] | None) -> LayerTpl:
    """Returns the attention; without a rope it does not rotate."""
    attention = self._attention()
    attention.set(
      query_scale=self.query_scale, atten_logit_cap=self.attention_logit_cap
    )
    if rope is None:
      attention.set(
        use_rotary_position_emb=False, consolidate_rope_key_state=False
      )
    else:
      if self.has_rotated_norms:
        attention.ln_tpl = Config(
          normalizations.RmsNormNoScale, epsilon=self.norm_epsilon
        )
      attention.rotary_position_emb_tpl = rotary_embedding(rope).set(
        rotary_dims=self.rotary_dims,
        interleaved_pairs=self.has_interleaved_pairs,
      )
    temperature = self.query_temperature
    if temperature and temperature.has_rotary == (rope is not None):
      attention.query_temperature_tpl = temperature.layer()
    return attention

  def _attention(self) -> LayerTpl:
    if self.latent_attention is not None:
      return self.latent_attention.layer(self._norm())
    attention = Config(
      multi_query_attention.MultiQueryDotProductAttention,
      num_kv_heads=self.num_kv_heads,
      use_bias=self.has_qkv_bias,
      use_output_bias=self.has_output_bias,
      scale_query_by_dim_per_head=True,
      use_attention_sinks=self.has_sinks,
      use_output_gate=self.has_output_gate,
      use_rotary_position_emb=True,
      # Rotated keys suffice for decoding.
      consolidate_rope_key_state=True,
    )
    if self.has_head_norms or self.has_projection_norms:
      attention.set(
        ln_tpl=self._norm(),
        ln_before_rotary=True,
        ln_all_heads=self.has_projection_norms,
      )
    return attention

  def _layer_weights(
    self, source: str, target: str, kind: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of a layer of the kind of layer `kind`."""
    for variable, tensor in self.norms.tensors.items():
      yield self._norm_weight(f'{source}.{tensor}', f'{target}/{variable}')
    attention = f'{source}.self_attn', f'{target}/self_attention'
    if self.delta_nets is not None and kind in self.delta_nets.layers:
      yield from self.delta_nets.weights(
        f'{source}.linear_attn', attention[1], self.model_dims
      )
    elif self.latent_attention is None:
      yield from self._attention_weights(*attention)
    else:
      yield from self.latent_attention.weights(*attention, self.model_dims)
    if self.experts is not None and kind in self.experts.layers:
      yield from self.experts.weights(
        source, f'{target}/ff_layer', self.model_dims
      )
      return
    feed_forward = (
      f'{source}.{self.feed_forward_tensors}',
      f'{target}/ff_layer',
    )
    if self.has_fused_gates:
      yield from weight_layouts.fused_feed_forward(
        *feed_forward, self.model_dims, self.hidden_dims
      )
      return
    yield from weight_layouts.gated_feed_forward(
      *feed_forward,
      self.model_dims,
      self.hidden_dims,
      has_bias=self.has_ffn_bias,
    )

  def _attention_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    model, head = self.model_dims, self.dim_per_head
    if self.has_fused_qkv:
      yield from self._fused_projection_weights(source, target)
    else:
      yield from self._projection_weights(source, target)
    yield weight_layouts.from_heads(
      f'{source}.o_proj.weight',
      f'{target}/post/w',
      model,
      (self.num_heads, head),
    )
    if self.has_output_bias:
      yield weight_layouts.same(
        f'{source}.o_proj.bias', f'{target}/post/b', model
      )
    if self.has_sinks:
      yield weight_layouts.same(
        f'{source}.sinks', f'{target}/sinks', self.num_heads
      )
    if self.has_head_norms or self.has_projection_norms:
      for name, num_heads in (('q', self.num_heads), ('k', self.num_kv_heads)):
        yield weight_layouts.same(
          f'{source}.{name}_norm.weight',
          f'{target}/layer_norm_{name}/scale',
          head * (num_heads if self.has_projection_norms else 1),
        )

  def _projection_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of queries, keys and values."""
    model = self.model_dims
    projections = [
      ('k_proj', 'key', self._key_heads()),
      ('v_proj', 'value', self._key_heads()),
    ]
    if self.has_output_gate:
      yield from self._gated_query_weights(source, target)
    else:
      queries = (self.num_heads, self.dim_per_head)
      projections.insert(0, ('q_proj', 'query', queries))
    for projection, name, heads in projections:
      axes = (len(heads), *range(len(heads)))
      shape = (math.prod(heads), model)
      yield weight_layouts.split(
        f'{source}.{projection}.weight',
        f'{target}/{name}/w',
        shape,
        (*heads, model),
        axes,
      )
      if self.has_qkv_bias:
        yield weight_layouts.split(
          f'{source}.{projection}.bias', f'{target}/{name}/b', shape[:1], heads
        )

  def _gated_query_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of queries and gates, which alternate by head."""
    heads, dim, model = self.num_heads, self.dim_per_head, self.model_dims
    for first, name in ((0, 'query'), (dim, 'output_gate')):
      part = slice(None), slice(first, first + dim)
      yield weight_layouts.split(
        f'{source}.q_proj.weight',
        f'{target}/{name}/w',
        (heads * 2 * dim, model),
        (heads, 2 * dim, model),
        (2, 0, 1),
      ).take(*part)
      if self.has_qkv_bias:
        yield weight_layouts.split(
          f'{source}.q_proj.bias',
          f'{target}/{name}/b',
          (heads * 2 * dim,),
          (heads, 2 * dim),
        ).take(*part)

  def _fused_projection_weights(
    self, source: str, target: str
  ) -> Iterator[WeightLayout]:
    """Yields the same, which are one tensor in this order."""
    model, head, first = self.model_dims, self.dim_per_head, 0
    total = self.num_heads + 2 * self.num_kv_heads
    for name, heads in (
      ('query', (self.num_heads, head)),
      ('key', self._key_heads()),
      ('value', self._key_heads()),
    ):
      end = first + math.prod(heads) // head
      yield weight_layouts.split(
        f'{source}.qkv_proj.weight',
        f'{target}/{name}/w',
        (total * head, model),
        (total, head, model),
        (2, 0, 1),
      ).take(slice(first, end), merged_shape=(model, *heads))
      first = end

  def _key_heads(self) -> tuple[int, ...]:
    """Returns the shape of keys; a single head of them has no axis."""
    heads = self.num_kv_heads, self.dim_per_head
    return heads[1:] if self.num_kv_heads == 1 else heads

  def _norm_weight(self, source: str, target: str) -> WeightLayout:
    return weight_layouts.same(
      f'{source}.weight', f'{target}/scale', self.model_dims
    )


def activation(name: str) -> LayerTpl:
  """Returns the Config of an activation by its name in config.json.

  Raises:
    ValueError: The name is unknown.
  """
  if name not in _ACTIVATIONS:
    raise ValueError(
      f'the activation in config.json must be one of {sorted(_ACTIVATIONS)},'
      f' got {name!r}'
    )
  return _ACTIVATIONS[name]()


def rotary_embedding(rope: Mapping[str, Any]) -> LayerTpl:
  """Returns the Config of the rotary embedding of `rope_parameters`.

  Raises:
    ValueError: A setting is not supported, or a number is missing.
  """

  def number(name: str, default: float | None = None) -> float:
    value = rope.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float):
      raise ValueError(
        f'{name} of the rotary embedding in config.json must be a number, got'
        f' {value!r}; use the file that save_pretrained writes'
      )
    return float(value)

  if rope.get('partial_rotary_factor', 1.0) != 1.0:
    raise ValueError(
      'partial_rotary_factor in config.json must be 1, got'
      f' {rope["partial_rotary_factor"]}; the layer rotates all channels'
    )
  rotary = Config(
    embedding_softmax.RotaryPositionalEmbedding,
    max_timescale=number('rope_theta'),
  )
  kind = rope['rope_type']
  if kind == 'linear':
    rotary.scaling_tpl = Config(
      rotary_scaling.LinearRotaryScaling, factor=number('factor')
    )
  elif kind == 'llama3':
    rotary.scaling_tpl = Config(
      rotary_scaling.Llama3RotaryScaling,
      factor=number('factor'),
      low_freq_factor=number('low_freq_factor'),
      high_freq_factor=number('high_freq_factor'),
      original_max_position=int(number('original_max_position_embeddings')),
    )
  elif kind == 'yarn':
    rotary.scaling_tpl = Config(
      rotary_scaling.YarnRotaryScaling,
      factor=number('factor'),
      original_max_position=int(number('original_max_position_embeddings')),
      beta_fast=number('beta_fast', 32),
      beta_slow=number('beta_slow', 1),
      truncate=rope.get('truncate', True),
      attention_factor=_yarn_attention_factor(rope, number),
    )
  elif kind != 'default':
    raise ValueError(
      "rope_type in config.json must be 'default', 'linear', 'llama3' or"
      f" 'yarn', got {kind!r}; only these scalings have a layer in praxis"
    )
  return rotary


def _yarn_attention_factor(
  rope: Mapping[str, Any], number: Callable[[str], float]
) -> float | None:
  """Returns the factor that the settings of YaRN have; None: by its paper."""
  if rope.get('attention_factor') is not None:
    return number('attention_factor')
  names = ('mscale', 'mscale_all_dim')
  if not all(map(rope.get, names)):
    return None
  of_rotated, of_all = (yarn_scale(rope, name) for name in names)
  return of_rotated / of_all


def yarn_scale(rope: Mapping[str, Any], name: str) -> float:
  """Returns 1 + 0.1 * rope[name] * log(factor), the scale of YaRN's paper.

  Args:
    rope: See `rotary_embedding`.
    name: Of the setting, `mscale` or `mscale_all_dim`.
  """
  return 1 + 0.1 * rope[name] * math.log(max(rope['factor'], 1.0))
