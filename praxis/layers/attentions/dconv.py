# SPDX-License-Identifier: Apache-2.0
"""A causal convolution per channel, for queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer


class CausalDepthwiseConv1D(base_layer.BaseLayer):
  """Adds weighted copies of the inputs from the steps before.

  Each of the kernel_size weights `dconv_i` scales the inputs of i steps ago,
  element by element; steps of another segment count as zero.

  References: Primer, https://arxiv.org/abs/2109.08668
  """

  # Number of steps that are looked at, the current one included.
  kernel_size: int = 3
  # Size, or sizes, of the dimensions after time.
  hidden_dims: int | Sequence[int] = 0

  def setup(self) -> None:
    if self.kernel_size < 1:
      raise ValueError(f'kernel_size must be positive, got {self.kernel_size}')
    dims = self.hidden_dims
    shape = [dims] if isinstance(dims, int) else list(dims)
    for i in range(self.kernel_size):
      start = 0.5 if i == 0 else 0.5 / self.kernel_size
      weight = base_layer.WeightHParams(
        shape=shape,
        init=base_layer.WeightInit.Constant(start),
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      )
      self.create_variable(f'dconv_{i}', weight)

  def __call__(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    segment_pos: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, '...']:
    """Returns the convolved inputs.

    Args:
      inputs: batch first, time on `axis`, then the hidden dimensions.
      axis: which dimension is time.
      segment_pos: position of each step in its segment; one segment if absent.
    """
    outputs = inputs * self.theta.dconv_0
    for i in range(1, min(self.kernel_size, inputs.shape[axis])):
      earlier = shift_1d(inputs, i, axis)
      if segment_pos is not None:
        inside = _align(segment_pos >= i, axis, inputs.ndim)
        earlier = jnp.where(inside, earlier, jnp.zeros((), inputs.dtype))
      outputs += earlier * getattr(self.theta, f'dconv_{i}')
    return outputs

  def extend_step(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    step: Int[Array, ''] | int,
    segment_pos: Int[Array, 'B'] | None = None,
  ) -> Float[Array, '...']:
    """Returns the convolved step `step`, without the time axis.

    Args:
      inputs: the inputs of all steps so far, time on `axis`.
      axis: which dimension is time.
      step: index of the step that is wanted.
      segment_pos: position of this step in its segment, per example.
    """
    if segment_pos is None:
      segment_pos = jnp.full(inputs.shape[:1], step, jnp.int32)
    outputs = _take(inputs, step, axis) * self.theta.dconv_0
    for i in range(1, self.kernel_size):
      earlier = _take(inputs, jnp.maximum(step - i, 0), axis)
      inside = segment_pos.reshape(-1, *[1] * (earlier.ndim - 1)) >= i
      earlier = jnp.where(inside, earlier, jnp.zeros((), inputs.dtype))
      outputs += earlier * getattr(self.theta, f'dconv_{i}')
    return outputs


def shift_1d(
  inputs: Float[Array, '...'], offset: int, axis: int
) -> Float[Array, '...']:
  """Returns the inputs `offset` steps later on `axis`, zeros coming in."""
  length = inputs.shape[axis]
  kept = jax.lax.slice_in_dim(
    inputs, max(-offset, 0), length - max(offset, 0), axis=axis
  )
  padding = [(0, 0)] * inputs.ndim
  padding[axis] = (max(offset, 0), max(-offset, 0))
  return jnp.pad(kept, padding)


def _align(values: Array, axis: int, rank: int) -> Array:
  """Reshapes [B, T] so that it broadcasts against `rank` dims, time on axis."""
  shape = [1] * rank
  shape[0], shape[axis] = values.shape
  return values.reshape(shape)


def _take(inputs: Array, step: Array | int, axis: int) -> Array:
  return jax.lax.dynamic_index_in_dim(inputs, step, axis, keepdims=False)
