# SPDX-License-Identifier: Apache-2.0
"""Learned relative position biases of attention logits (T5)."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer

WeightHParams = base_layer.WeightHParams
WeightInit = base_layer.WeightInit


class RelativeBias(base_layer.BaseLayer):
  """A learned bias per head and distance bucket; far buckets are logarithmic.

  References: Exploring the Limits of Transfer Learning with a Unified
  Text-to-Text Transformer, https://arxiv.org/abs/1910.10683, section 2.1
  """

  num_heads: int = 1
  # Whether distances in training are differences of array indices instead of
  # the given positions; within a segment both are equal.
  use_length_as_position: bool = True
  # Number of distance buckets; half of them hold a single distance.
  relative_attention_num_buckets: int = 32
  # Distances at least this large share the last bucket.
  relative_attention_max_distance: int = 128
  # Whether later keys have separate buckets; otherwise they share bucket 0.
  bidirectional: bool = False
  # Whether the table is initialized by params_init instead of Gaussian.
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
    """Returns the bias; one for all examples where indices count."""
    if key_segment_pos is None:
      key_segment_pos = query_segment_pos
    if self.use_length_as_position and not self.do_eval:
      query_segment_pos = jnp.arange(query_segment_pos.shape[1])[jnp.newaxis]
      key_segment_pos = jnp.arange(key_segment_pos.shape[1])[jnp.newaxis]
    keys = key_segment_pos[:, jnp.newaxis, :]
    return self._bias(keys - query_segment_pos[:, :, jnp.newaxis])

  def extend_step(
    self, seq_length: int, time_step: Int[Array, ''] | int | None = None
  ) -> Float[Array, '1 N T S']:
    """Returns the bias of the query at `time_step`, or of all when None."""
    keys = jnp.arange(seq_length)[jnp.newaxis, :]
    if time_step is None:
      queries = jnp.arange(seq_length)[:, jnp.newaxis]
    else:
      queries = jnp.asarray(time_step).reshape(1, 1)
    return self._bias((keys - queries)[jnp.newaxis])

  def _bias(self, distance: Int[Array, 'B T S']) -> Float[Array, 'B N T S']:
    """Returns the table's entries for key minus query position."""
    bias = base_layer.gather_rows(self.theta.wrb.T, self._buckets(distance))
    return jnp.moveaxis(bias, -1, 1)

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
    # Buckets beyond the exact ones are equally wide in log(distance).
    ratio = jnp.maximum(distance, max_exact).astype(jnp.float32) / max_exact
    span = math.log(self.relative_attention_max_distance / max_exact)
    steps = jnp.log(ratio) / span * (num_buckets - max_exact)
    far = jnp.minimum(max_exact + steps.astype(jnp.int32), num_buckets - 1)
    return first + jnp.where(distance < max_exact, distance, far)
