# SPDX-License-Identifier: Apache-2.0
"""Decoders with RMS norms and gated feed-forward layers, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax.numpy as jnp

from pax.huggingface import weight_layouts
from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.activations import activation
from pax.huggingface.layers.feed_forward import FeedForward
from pax.huggingface.layers.layer_inputs import LayerInputs
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.mixture_of_experts import MixtureOfExperts
from pax.huggingface.layers.mtp_modules import MtpModules
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  embedding_softmax,
  models,
  normalizations,
  transformer_models,
  transformers,
)

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LayerTensors(NamedTuple):
  """Names of the tensors of a layer."""

  # Of what the layer has besides its blocks.
  layer: str
  # By the paths of the norms.
  norms: Mapping[str, str]
  mixer: str
  # Of what has the feed-forward block; None for none.
  feed_forward: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryDecoder:
  """The settings of a model."""

  # Names of the tensors of the embedding and of the last norm.
  embedding_tensor: str = 'model.embed_tokens'
  final_norm_tensor: str = 'model.norm'

  vocab_size: int
  model_dims: int
  norm_epsilon: float
  # Whether norms store their scale minus 1.
  has_offset_norms: bool = False
  # Whether the softmax has the weights of the embedding.
  is_tied: bool
  # Whether embeddings are multiplied by √(model_dims).
  scales_embedding: bool = False
  # Other factors of embeddings, of the outputs of attention and feed-forward
  # layers, and of the input of the softmax.
  embedding_scale: float = 1.0
  residual_scale: float = 1.0
  head_scale: float = 1.0
  # Soft cap of the logits; None for none.
  logit_cap: float | None = None
  norms: layer_norms.LayerNorms = layer_norms.INPUTS
  # Whether the output of each layer is multiplied by a number, which is not
  # trained.
  has_layer_scales: bool = False
  # Inputs of each layer in addition to its activations; None for none.
  layer_inputs: LayerInputs | None = None
  # That of each layer.
  mixers: tuple[Mixer, ...]
  # The feed-forward layers, and those that are mixtures of experts instead;
  # None for no layer.
  feed_forward: FeedForward
  # Other widths of feed-forward layers by their indices.
  hidden_dims_of_layers: Mapping[int, int] = dataclasses.field(
    default_factory=dict
  )
  experts: MixtureOfExperts | None = None
  # Those that predict the tokens after the next one.
  mtp_modules: MtpModules = MtpModules()

  def model(self) -> LayerTpl:
    """Returns the Config of the LanguageModel."""
    lm = Config(
      transformer_models.TransformerLm,
      model_dims=self.model_dims,
      vocab_size=self.vocab_size,
      position_emb_tpl=None,
      final_ln_tpl=self._norm(),
      stacked_transformer_tpl=self._stack(),
      softmax_tpl=self._softmax(),
    )
    if not self.is_tied:
      lm.separate_embedding_tpl = Config(
        embedding_softmax.Embedding,
        scale_sqrt_depth=self.scales_embedding,
        embedding_scale=self.embedding_scale,
      )
    if self.layer_inputs is not None:
      lm.layer_inputs_tpl = self.layer_inputs.layer(self._norm())
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
      f'{self.embedding_tensor}.weight',
      f'params/lm/{embedding}',
      *(vocab, model),
    )
    if self.layer_inputs is not None:
      yield from self.layer_inputs.weights(vocab, model)
    for i in range(len(self.mixers)):
      yield from self._layer_weights(
        self._layer_tensors(i), f'params/lm/transformer/x_layers_{i}', i
      )
    for i, source in enumerate(self.mtp_modules.sources):
      target = self.mtp_modules.variables(i)
      yield from self.mtp_modules.weights(i, self.model_dims)
      last = len(self.mixers) - 1
      yield from self._layer_weights(
        self._tensors_in(source, last),
        f'{target}/transformer/x_layers_0',
        last,
      )
    yield self._norm_weight(self.final_norm_tensor, 'params/lm/final_ln')
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

  def _stack(self) -> LayerTpl:
    stack = Config(
      transformers.StackedTransformer,
      num_layers=len(self.mixers),
      hidden_dims=self.feed_forward.hidden_dims,
      transformer_layer_params_tpl=self._layers(),
    )
    if self.experts is not None:
      self.experts.set_layers(
        stack,
        activation_tpl=activation(self.feed_forward.activation),
        ln_tpl=self._norm(),
        residual_weight=self.residual_scale,
      )
    windows = [mixer.window for mixer in self.mixers]
    if any(window is not None for window in windows):
      stack.local_window_size = [
        None if window is None else (window - 1, 0) for window in windows
      ]
    sources = [mixer.key_source for mixer in self.mixers]
    if any(source is not None for source in sources):
      stack.key_sources = sources
    return stack

  def _layers(self) -> LayerTpl | list[LayerTpl]:
    """Returns the layer, or all layers if they differ but for their windows."""
    kinds = [
      (
        dataclasses.replace(mixer, window=None, key_source=None),
        self.hidden_dims_of_layers.get(i, 0),
        self._layer_tensors(i).feed_forward is not None,
      )
      for i, mixer in enumerate(self.mixers)
    ]
    firsts = [kinds.index(kind) for kind in kinds]
    # A copy of a Config is faster than a new one.
    layers = {i: self._layer(*kinds[i]) for i in set(firsts)}
    if len(layers) == 1:
      return layers[0]
    return [layers[i].clone() for i in firsts]

  def _layer(
    self, mixer: Mixer, hidden_dims: int, has_feed_forward: bool
  ) -> LayerTpl:
    """Returns the Config of a layer.

    Args:
      mixer: Its mixer.
      hidden_dims: Its own width of the feed-forward layer; 0 for the model's.
      has_feed_forward: Whether it has one, or experts.
    """
    feed_forward = self.feed_forward.layer()
    feed_forward.set(ln_tpl=self._norm(), residual_weight=self.residual_scale)
    layer = Config(
      transformers.Transformer
      if has_feed_forward
      else transformers.TransformerWithoutFeedForward,
      hidden_dims=hidden_dims,
      atten_residual_weight=self.residual_scale,
      norm_policy=self.norms.policy,
      use_output_scale=self.has_layer_scales,
      ln_tpl=self._norm(),
      tr_atten_tpl=mixer.layer(self._norm()),
      tr_fflayer_tpl=feed_forward,
    )
    if self.layer_inputs is not None:
      layer.layer_input_tpl = self.layer_inputs.branch(self._norm())
    return layer

  def _layer_tensors(self, index: int) -> LayerTensors:
    """Returns the names of the tensors of a layer."""
    return self._tensors_in(f'model.layers.{index}', index)

  def _tensors_in(self, source: str, index: int) -> LayerTensors:
    """Returns the names of the tensors of a layer like the one with this index.

    Args:
      source: Name of the layer.
      index: The index.
    """
    return LayerTensors(
      layer=source,
      norms={
        variable: f'{source}.{tensor}'
        for variable, tensor in self.norms.tensors.items()
      },
      mixer=f'{source}.{self.mixers[index].tensors}',
      feed_forward=source,
    )

  def _layer_weights(
    self, tensors: LayerTensors, target: str, index: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of a layer like the one with this index."""
    source = tensors.layer
    for variable, tensor in tensors.norms.items():
      yield self._norm_weight(tensor, f'{target}/{variable}')
    if self.has_layer_scales:
      # A variable that no gradient updates.
      scale = f'{target.replace("params/", "non_trainable/", 1)}/output_scale'
      yield weight_layouts.same(f'{source}.layer_scalar', scale, 1)
    yield from self.mixers[index].weights(
      tensors.mixer, f'{target}/self_attention', self.model_dims
    )
    if self.layer_inputs is not None:
      yield from self.layer_inputs.branch_weights(
        source, f'{target}/layer_input', self.model_dims
      )
    if tensors.feed_forward is None:
      return
    hidden_dims = self.hidden_dims_of_layers.get(
      index, self.feed_forward.hidden_dims
    )
    feed_forward: MixtureOfExperts | FeedForward = dataclasses.replace(
      self.feed_forward, hidden_dims=hidden_dims
    )
    if self.experts is not None and index in self.experts.layers:
      feed_forward = self.experts
    yield from feed_forward.weights(
      tensors.feed_forward, f'{target}/ff_layer', self.model_dims
    )

  def _norm_weight(self, source: str, target: str) -> WeightLayout:
    return weight_layouts.same(
      f'{source}.weight', f'{target}/scale', self.model_dims
    )
