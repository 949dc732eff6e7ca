# SPDX-License-Identifier: Apache-2.0
"""What is before and after the transformer of a vision transformer."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import (
  activations,
  embedding_softmax,
  linears,
  normalizations,
  poolings,
  stochastics,
)
from praxis.layers.vits import patches as patches_lib

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class VitEntryLayers(base_layer.BaseLayer):
  """Projects the patches of an image and adds embeddings of their places."""

  # Rows and columns of patches that have an embedding; it is resized for
  # images of another size.
  pos_emb_shapes: tuple[int, int] = (0, 0)
  # Height and width of a patch.
  patch_size: int = 0
  # Size of a patch before, and after the projection.
  input_dims: int = 0
  output_dims: int = 0
  # The probability that dropout zeroes an element of the sum.
  pos_emb_dropout_prob: float = 0.0
  # How many learned vectors stand before, and after the patches.
  prepend_cls_tokens: int = 0
  append_cls_tokens: int = 0
  # What these vectors start from.
  cls_emb_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # The embedding of places; None: there is none.
  pos_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.TrainablePositionalEmbedding
  )
  # Whether the projection has a bias.
  input_fc_has_bias: bool = True

  def setup(self) -> None:
    projection = pax_fiddle.Config(
      linears.FeedForward,
      input_dims=self.input_dims,
      output_dims=self.output_dims,
      has_bias=self.input_fc_has_bias,
      activation_tpl=pax_fiddle.Config(activations.Identity),
    )
    self.create_child('patch_projection', projection)
    if self.pos_emb_tpl is not None:
      self.create_child('pos_emb', self.pos_emb_tpl.clone())
    if self.pos_emb_dropout_prob > 0.0:
      self.create_child('dropout', _dropout(self.pos_emb_dropout_prob))
    for place in ('prepend', 'append'):
      if count := getattr(self, f'{place}_cls_tokens'):
        shape = [1, count, self.output_dims]
        tokens = WeightHParams(shape=shape, init=self.cls_emb_init)
        self.create_variable(f'{place}_cls_embs', tokens)

  def __call__(self, inputs: Num[Array, 'B ...']) -> Float[Array, 'B N D']:
    """Returns the vectors of an image [B, H, W, C], or of patches [B, N, P]."""
    grid = None
    if inputs.ndim == 4:
      grid = patches_lib.patch_grid(*inputs.shape[1:3], self.patch_size)
      inputs = patches_lib.image_to_patch(inputs, self.patch_size)
    elif inputs.ndim != 3:
      raise ValueError(
        'inputs must be images [B, H, W, C] or patches [B, N, P], got shape '
        f'{inputs.shape}'
      )
    features = self.patch_projection(inputs.astype(self.fprop_dtype))
    if self.pos_emb_tpl is not None:
      features = features + self._places(grid, features.shape[1])
    if self.pos_emb_dropout_prob > 0.0:
      features = self.dropout(features)
    return self._with_tokens(features)

  def _places(
    self, grid: tuple[int, int] | None, length: int
  ) -> Float[Array, '1 N D']:
    shape = tuple(self.pos_emb_shapes)
    count = math.prod(shape)
    embedded = self.pos_emb(seq_length=count)
    if grid is not None and len(shape) == 2:
      if grid == shape:
        return embedded
      return patches_lib.interpolate_embedding_2d(embedded, shape, grid)
    if count != length:
      raise ValueError(
        f'inputs must have {count} patches, the product of pos_emb_shapes '
        f'{shape}, got {length}; pass images to have embeddings resized'
      )
    return embedded

  def _with_tokens(
    self, features: Float[Array, 'B N D']
  ) -> Float[Array, 'B M D']:
    spread = lambda tokens: jnp.broadcast_to(
      tokens, (features.shape[0], *tokens.shape[1:])
    )
    parts = [features]
    if self.prepend_cls_tokens:
      parts.insert(0, spread(self.theta.prepend_cls_embs))
    if self.append_cls_tokens:
      parts.append(spread(self.theta.append_cls_embs))
    return jnp.concatenate(parts, axis=1)


class VitExitLayers(base_layer.BaseLayer):
  """Normalises, pools and projects the vectors of an image."""

  # Size of the input and of the output; an output of 0 is the input's.
  hidden_dim: int = 0
  output_dim: int = 0
  # The probability that dropout zeroes an element of the output.
  output_dropout_prob: float = 0.0
  # Whether to pool, or to return all vectors.
  pooled: bool = True
  # Whether to normalise first.
  pre_ln: bool = True
  # Whether the projection is there whatever the sizes, and ends with a tanh.
  output_fc_tanh: bool = True
  # Whether the projection has a bias.
  output_fc_has_bias: bool = True
  # The pooling, by default the mean of all vectors, and the normalisation.
  pooling_tpl: LayerTpl = template_field(
    poolings.GlobalPooling, pooling_dims=(1,)
  )
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)

  def setup(self) -> None:
    if self.pre_ln:
      self.create_child('ln', self.ln_tpl.clone().set(dim=self.hidden_dim))
    if self.pooled:
      self.create_child('pooling', self.pooling_tpl)
    if self._projection:
      last = activations.Tanh if self.output_fc_tanh else activations.Identity
      projection = pax_fiddle.Config(
        linears.FeedForward,
        input_dims=self.hidden_dim,
        output_dims=self.output_dim,
        has_bias=self.output_fc_has_bias,
        activation_tpl=pax_fiddle.Config(last),
      )
      self.create_child(self._projection, projection)
    if self.output_dropout_prob > 0.0:
      self.create_child('dropout', _dropout(self.output_dropout_prob))

  @property
  def _projection(self) -> str | None:
    """The name of the projection, None if there is none."""
    if self.output_fc_tanh:
      return 'fc_tanh'
    if self.output_dim not in (0, self.hidden_dim):
      return 'output_projection'
    return None

  def __call__(self, inputs: Float[Array, 'B N D']) -> Float[Array, 'B ...']:
    """Returns [B, O], or [B, N, O] if `pooled` is not set."""
    outputs = self.ln(inputs) if self.pre_ln else inputs
    if self.pooled:
      outputs = self.pooling(outputs)
    if self._projection:
      outputs = getattr(self, self._projection)(outputs)
    if self.output_dropout_prob > 0.0:
      outputs = self.dropout(outputs)
    return outputs


def _dropout(probability: float) -> LayerTpl:
  return pax_fiddle.Config(stochastics.Dropout, keep_prob=1.0 - probability)
