# SPDX-License-Identifier: Apache-2.0
"""Patch embedding and output head of a vision transformer."""

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
  """Patch projection, position embeddings and class tokens.

  References: ViT, https://arxiv.org/abs/2010.11929, section 3.1
  """

  # Rows and columns of the grid of position embeddings. Images with another
  # grid of patches interpolate it (section 3.2).
  pos_emb_shapes: tuple[int, int] = (0, 0)
  # Height and width of a patch in pixels.
  patch_size: int = 0
  # Dimensions of the patch projection: P = patch_size² · channels, and D.
  input_dims: int = 0
  output_dims: int = 0
  # Dropout rate of the sum of projections and position embeddings.
  pos_emb_dropout_prob: float = 0.0
  # Number of learned class tokens before, and after the patches.
  prepend_cls_tokens: int = 0
  append_cls_tokens: int = 0
  # Initializer of the class tokens.
  cls_emb_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # Position embedding; None omits it.
  pos_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.TrainablePositionalEmbedding
  )
  # Adds a bias to the patch projection.
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
    for name, num_tokens in (
      ('prepend_cls_embs', self.prepend_cls_tokens),
      ('append_cls_embs', self.append_cls_tokens),
    ):
      if num_tokens:
        shape = [1, num_tokens, self.output_dims]
        tokens = WeightHParams(shape=shape, init=self.cls_emb_init)
        self.create_variable(name, tokens)

  def __call__(self, inputs: Num[Array, 'B ...']) -> Float[Array, 'B N D']:
    """Returns the token embeddings of images or patches.

    Args:
      inputs: images [B, H, W, C], or patches [B, N, P].

    Raises:
      ValueError: the rank is neither 3 nor 4, or the patches do not match
        `pos_emb_shapes`.
    """
    grid = None
    if inputs.ndim == 4:
      _, height, width, _ = inputs.shape
      grid = patches_lib.patch_grid(height, width, self.patch_size)
      inputs = patches_lib.image_to_patch(inputs, self.patch_size)
    elif inputs.ndim != 3:
      raise ValueError(
        'inputs must be images [B, H, W, C] or patches [B, N, P], got shape '
        f'{inputs.shape}'
      )
    features = self.patch_projection(inputs.astype(self.fprop_dtype))
    if self.pos_emb_tpl is not None:
      features = features + self._position_embs(grid, features.shape[1])
    if self.pos_emb_dropout_prob > 0.0:
      features = self.dropout(features)
    return self._add_cls_tokens(features)

  def _position_embs(
    self, grid: tuple[int, int] | None, num_patches: int
  ) -> Float[Array, '1 N D']:
    """Returns the position embeddings, interpolated to `grid` if given."""
    shape = tuple(self.pos_emb_shapes)
    num_positions = math.prod(shape)
    pos_embs = self.pos_emb(seq_length=num_positions)
    if grid is not None and len(shape) == 2:
      if grid == shape:
        return pos_embs
      return patches_lib.interpolate_embedding_2d(pos_embs, shape, grid)
    if num_positions != num_patches:
      raise ValueError(
        f'inputs must have {num_positions} patches, the product of '
        f'pos_emb_shapes {shape}, got {num_patches}; pass images to '
        'interpolate the position embeddings'
      )
    return pos_embs

  def _add_cls_tokens(
    self, features: Float[Array, 'B N D']
  ) -> Float[Array, 'B M D']:
    broadcast = lambda tokens: jnp.broadcast_to(
      tokens, (features.shape[0], *tokens.shape[1:])
    )
    sequence = [features]
    if self.prepend_cls_tokens:
      sequence.insert(0, broadcast(self.theta.prepend_cls_embs))
    if self.append_cls_tokens:
      sequence.append(broadcast(self.theta.append_cls_embs))
    return jnp.concatenate(sequence, axis=1)


class VitExitLayers(base_layer.BaseLayer):
  """Output head: layer norm, pooling and projection of the tokens."""

  # Input dimension D and output dimension O; 0 is the input dimension.
  hidden_dim: int = 0
  output_dim: int = 0
  # Dropout rate of the output.
  output_dropout_prob: float = 0.0
  # Pools the tokens; if False, all tokens are returned.
  pooled: bool = True
  # Applies layer norm first.
  pre_ln: bool = True
  # Projects with a tanh activation. If False, the projection is linear and
  # exists only if output_dim differs from hidden_dim.
  output_fc_tanh: bool = True
  # Adds a bias to the projection.
  output_fc_has_bias: bool = True
  # Pooling, by default the mean over tokens, and normalization.
  pooling_tpl: LayerTpl = template_field(
    poolings.GlobalPooling, pooling_dims=(1,)
  )
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)

  def setup(self) -> None:
    if self.pre_ln:
      self.create_child('ln', self.ln_tpl.clone().set(dim=self.hidden_dim))
    if self.pooled:
      self.create_child('pooling', self.pooling_tpl)
    if self._projection_name:
      last = activations.Tanh if self.output_fc_tanh else activations.Identity
      projection = pax_fiddle.Config(
        linears.FeedForward,
        input_dims=self.hidden_dim,
        output_dims=self.output_dim,
        has_bias=self.output_fc_has_bias,
        activation_tpl=pax_fiddle.Config(last),
      )
      self.create_child(self._projection_name, projection)
    if self.output_dropout_prob > 0.0:
      self.create_child('dropout', _dropout(self.output_dropout_prob))

  @property
  def _projection_name(self) -> str | None:
    """Name of the child that projects the output; None without projection."""
    if self.output_fc_tanh:
      return 'fc_tanh'
    if self.output_dim not in (0, self.hidden_dim):
      return 'output_projection'
    return None

  def __call__(self, inputs: Float[Array, 'B N D']) -> Float[Array, 'B ...']:
    """Returns features [B, O], or [B, N, O] if not `pooled`."""
    outputs = self.ln(inputs) if self.pre_ln else inputs
    if self.pooled:
      outputs = self.pooling(outputs)
    if self._projection_name:
      outputs = getattr(self, self._projection_name)(outputs)
    if self.output_dropout_prob > 0.0:
      outputs = self.dropout(outputs)
    return outputs


def _dropout(rate: float) -> LayerTpl:
  return pax_fiddle.Config(stochastics.Dropout, keep_prob=1.0 - rate)
