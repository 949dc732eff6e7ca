# SPDX-License-Identifier: Apache-2.0
"""Additive position embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightHParams
from praxis.layers import base_ops

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class PositionalEmbedding(base_layer.BaseLayer):
  """Sinusoidal position embeddings with geometrically spaced timescales.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Shortest and longest timescale, in positions.
  min_timescale: float | int = 1
  max_timescale: float | int = 10_000
  # Embedding dimension.
  embedding_dims: int = 0

  def __call__(
    self,
    seq_length: int | None = None,
    position: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Embeds `position`, or positions 0 to `seq_length` - 1 with B = 1.

    Raises:
      ValueError: neither argument is given.
    """
    embedded = sinusoids(
      self._positions(seq_length, position),
      self.embedding_dims,
      self.min_timescale,
      self.max_timescale,
    )
    return embedded.astype(self.fprop_dtype)

  def _positions(
    self, seq_length: int | None, position: Int[Array, 'B T'] | None
  ) -> Int[Array, 'B T']:
    if position is not None:
      return position
    if seq_length is None:
      raise ValueError(
        f'{type(self).__name__} needs seq_length or position, got neither'
      )
    return jnp.arange(seq_length, dtype=jnp.int32)[None]


class TrainablePositionalEmbedding(PositionalEmbedding):
  """Learned position embeddings."""

  # Number of positions.
  max_seq_length: int = 10_240
  # 'index' gathers rows; 'matmul' multiplies one-hot ids with the table, which
  # is cheap if the table is sharded over classes.
  lookup_style: str = 'matmul'
  array_lookup_tpl: LayerTpl = template_field(base_ops.ArrayLookup)
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)

  class ActivationSharding(base_layer.ActivationSharding):
    # Embeddings [B, T, D].
    emb_out_split_dims_mapping: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    create_lookup_table(self, [self.max_seq_length, self.embedding_dims])
    self.create_child('array_lookup', self.array_lookup_tpl.clone())
    self.create_child('einsum', self.einsum_tpl.clone())

  def __call__(
    self,
    seq_length: int | None = None,
    position: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Embeds `position`, or positions 0 to `seq_length` - 1 with B = 1.

    Positions are below `seq_length` if both are given.
    """
    position = self._positions(seq_length, position)
    rows = self.max_seq_length if seq_length is None else seq_length
    if rows > self.max_seq_length:
      raise ValueError(
        f'seq_length must be at most max_seq_length {self.max_seq_length}, '
        f'got {rows}; raise max_seq_length'
      )
    table = self.theta.emb_var
    if self.lookup_style == 'index':
      embedded = self.array_lookup(table, position)
    else:
      one_hot = jax.nn.one_hot(position, rows, dtype=table.dtype)
      embedded = self.einsum('...y,yz->...z', one_hot, table[:rows])
    mapping = self.activation_split_dims_mapping.emb_out_split_dims_mapping
    if mapping is not None and embedded.shape[0] == 1:
      # A batch dimension of 1 cannot be sharded.
      mapping = [None, *mapping[1:]]
    return base_layer.maybe_shard(embedded, mapping, self.mesh_axis_names)


class PositionalEmbedding2D(base_layer.BaseLayer):
  """Sinusoidal embedding of image patches: half the channels for each axis.

  Rows count from -h / 2, columns from -w / 2. Half of the channels of an axis
  are sines, half cosines; the timescales are 10000^(2i / D) as in "Attention Is
  All You Need" (arXiv:1706.03762), section 3.5, with D channels per axis.
  """

  # Height and width in patches.
  h: int = 0
  w: int = 0
  # Embedding dimension, a multiple of 4.
  embedding_dims: int = 0
  # Order of the patches: row-major or column-major.
  pos_transform: str = 'hwd->(hw)d'
  # Number of tokens before and after the patches, such as class tokens; their
  # position embedding is 0.
  num_prepend_cls_tokens: int = 0
  num_append_cls_tokens: int = 0

  def setup(self) -> None:
    if self.pos_transform not in ('hwd->(hw)d', 'hwd->(wh)d'):
      raise ValueError(
        "pos_transform must be 'hwd->(hw)d' or 'hwd->(wh)d', got "
        f'{self.pos_transform!r}'
      )
    if self.embedding_dims % 4 or self.embedding_dims <= 0:
      raise ValueError(
        'embedding_dims must be a multiple of 4 and > 0 (sines and cosines of '
        f'two axes), got {self.embedding_dims}'
      )

  def __call__(
    self,
    seq_length: int | None = None,
    position: Int[Array, '...'] | None = None,
  ) -> Float[Array, '1 T D']:
    """Returns the embedding of the whole grid; ignores the arguments."""
    half = self.embedding_dims // 2
    row_channels = _waves(self.h, half)[:, None]
    column_channels = _waves(self.w, half)[None]
    grid = jnp.concatenate(
      [
        jnp.broadcast_to(row_channels, (self.h, self.w, half)),
        jnp.broadcast_to(column_channels, (self.h, self.w, half)),
      ],
      axis=-1,
    )
    if self.pos_transform == 'hwd->(wh)d':
      grid = jnp.swapaxes(grid, 0, 1)
    sequence = grid.reshape(self.h * self.w, self.embedding_dims)
    cls_tokens = (self.num_prepend_cls_tokens, self.num_append_cls_tokens)
    sequence = jnp.pad(sequence, [cls_tokens, (0, 0)])
    return sequence[None].astype(self.fprop_dtype)


def _waves(size: int, dims: int) -> Float[Array, 'S D']:
  """Returns [sines, cosines] of the positions of one axis of an image."""
  timescale = 10_000 ** (jnp.arange(dims // 2) / (dims // 2))
  angle = (jnp.arange(size) - size / 2)[:, None] / timescale
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def sinusoids(
  position: Array,
  dims: int,
  shortest: float | int = 1,
  longest: float | int = 10_000,
) -> Float[Array, '*shape D']:
  """Returns [sines, cosines] of `position`; an odd `dims` ends with 0.

  Like Tensor2Tensor it multiplies the frequencies by `shortest`, though a
  timescale should divide them: trained models depend on it.
  """
  num_timescales = dims // 2
  step = math.log(longest / shortest) / max(num_timescales - 1, 1)
  frequency = shortest * jnp.exp(-step * jnp.arange(num_timescales))
  angle = position[..., None].astype(jnp.float32) * frequency
  signal = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
  return jnp.pad(signal, [(0, 0)] * position.ndim + [(0, dims % 2)])


def create_lookup_table(
  layer: base_layer.BaseLayer, shape: Sequence[int]
) -> None:
  """Creates the variable `emb_var` of a layer with a `lookup_style`.

  Args:
    layer: the layer.
    shape: number of rows and dimension of an embedding.
  """
  check_lookup_style(layer.lookup_style)
  layer.create_variable(
    'emb_var',
    WeightHParams(
      shape=shape,
      mesh_shape=layer.mesh_shape,
      tensor_split_dims_mapping=layer.weight_split_dims_mapping.wt,
    ),
  )


def check_lookup_style(style: str) -> None:
  """Raises ValueError unless `style` is a supported lookup_style."""
  if style not in ('index', 'matmul'):
    raise ValueError(f"lookup_style must be 'index' or 'matmul', got {style!r}")
