# SPDX-License-Identifier: Apache-2.0
"""What attention adds to its queries and logits beyond the products."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer

WeightHParams = base_layer.WeightHParams
WeightInit = base_layer.WeightInit

# 1 / log(2), so that the scale starts at 1 with softplus(0) = log(2).
_INVERSE_SOFTPLUS_OF_ZERO = 1.442695041


class PerDimScale(base_layer.BaseLayer):
  """Scales each dimension of the queries, by 1/√dim at the start."""

  # Size of the last dimension.
  dim: int = 0

  def setup(self) -> None:
    self.create_variable(
      'per_dim_scale',
      WeightHParams(shape=[self.dim], init=WeightInit.Constant(0.0)),
    )

  def __call__(self, inputs: Float[Array, '*B H']) -> Float[Array, '*B H']:
    if inputs.shape[-1] != self.dim:
      raise ValueError(
        f'the last dimension of the inputs must be dim={self.dim}, got shape '
        f'{list(inputs.shape)}'
      )
    scale = jax.nn.softplus(self.theta.per_dim_scale)
    scale = scale * (_INVERSE_SOFTPLUS_OF_ZERO / math.sqrt(self.dim))
    return inputs * scale.astype(inputs.dtype)


class RelativeBias(base_layer.BaseLayer):
  """A learned bias per head and distance, with logarithmic buckets.

  References: Exploring the Limits of Transfer Learning with a Unified
  Text-to-Text Transformer, https://arxiv.org/abs/1910.10683
  """

  num_heads: int = 1
  # Whether distances are those in the array, which packing does not change
  # within a segment, rather than differences of the positions passed in.
  use_length_as_position: bool = True
  # Number of distances told apart; half of them are exact.
  relative_attention_num_buckets: int = 32
  # Distances from here on share the last bucket.
  relative_attention_max_distance: int = 128
  # Whether later keys have buckets of their own; else they share bucket 0.
  bidirectional: bool = False
  # Whether the table is initialised with params_init and not Gaussian.
  use_xavier_init: bool = False

  def setup(self) -> None:
    shape = [self.num_heads, self.relative_attention_num_buckets]
    gaussian = WeightInit.Gaussian(math.prod(shape) ** -0.5)
    init = None if self.use_xavier_init else gaussian
    weight = WeightHParams(
      shape=shape,
      init=init,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
    )
    self.create_variable('wrb', weight)

  def __call__(
    self,
    query_segment_pos: Int[Array, 'B T'],
    key_segment_pos: Int[Array, 'B S'] | None = None,
  ) -> Float[Array, '#B N T S']:
    """Returns the bias; its batch is 1 for positions in the array."""
    if key_segment_pos is None:
      key_segment_pos = query_segment_pos
    if self.use_length_as_position:
      query_segment_pos = jnp.arange(query_segment_pos.shape[1])[jnp.newaxis]
      key_segment_pos = jnp.arange(key_segment_pos.shape[1])[jnp.newaxis]
    keys = key_segment_pos[:, jnp.newaxis, :]
    return self._bias(keys - query_segment_pos[:, :, jnp.newaxis])

  def extend_step(
    self, seq_length: int, time_step: Int[Array, ''] | int | None = None
  ) -> Float[Array, '1 N T S']:
    """Returns the bias of the query at `time_step`, or of all, to the keys."""
    keys = jnp.arange(seq_length)[jnp.newaxis, :]
    if time_step is None:
      queries = jnp.arange(seq_length)[:, jnp.newaxis]
    else:
      queries = jnp.asarray(time_step).reshape(1, 1)
    return self._bias((keys - queries)[jnp.newaxis])

  def _bias(self, distance: Int[Array, 'B T S']) -> Float[Array, 'B N T S']:
    """Returns the rows of the table for key minus query position."""
    table = self.theta.wrb
    buckets = self._buckets(distance)
    return jnp.moveaxis(jnp.take(table, buckets, axis=1), 0, 1)

  def _buckets(self, distance: Int[Array, 'B T S']) -> Int[Array, 'B T S']:
    num_buckets = self.relative_attention_num_buckets
    first = jnp.zeros_like(distance)
    if self.bidirectional:
      num_buckets //= 2
      first = jnp.where(distance > 0, num_buckets, 0)
      distance = jnp.abs(distance)
    else:
      distance = jnp.maximum(-distance, 0)
    max_exact = num_buckets // 2
    # Distances beyond the exact ones grow by a constant factor per bucket.
    ratio = jnp.maximum(distance, max_exact).astype(jnp.float32) / max_exact
    span = math.log(self.relative_attention_max_distance / max_exact)
    steps = jnp.log(ratio) / span * (num_buckets - max_exact)
    far = jnp.minimum(max_exact + steps.astype(jnp.int32), num_buckets - 1)
    return first + jnp.where(distance < max_exact, distance, far)
