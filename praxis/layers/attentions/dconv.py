# SPDX-License-Identifier: Apache-2.0
"""Causal depthwise convolution of queries, keys and values (Primer)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from praxis import base_layer


class CausalDepthwiseConv1D(base_layer.BaseLayer):
  """A causal depthwise convolution over time.

  The output is the sum over i of the inputs i steps earlier times `dconv_i`,
  elementwise; steps of other segments count as zero.

  References: Primer, https://arxiv.org/abs/2109.08668
  """

  # Number of steps the kernel covers, including the current one.
  kernel_size: int = 3
  # Size of the dimension or dimensions after time.
  hidden_dims: int | Sequence[int] = 0

  def setup(self) -> None:
    if self.kernel_size < 1:
      raise ValueError(f'kernel_size must be positive, got {self.kernel_size}')
    for i in range(self.kernel_size):
      value = 0.5 if i == 0 else 0.5 / self.kernel_size
      self._create_constant(f'dconv_{i}', value)

  def _create_constant(self, name: str, value: float) -> None:
    """Creates a variable with all elements `value`."""
    dims = self.hidden_dims
    weight = base_layer.WeightHParams(
      shape=[dims] if isinstance(dims, int) else list(dims),
      init=base_layer.WeightInit.Constant(value),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
    )
    self.create_variable(name, weight)

  def __call__(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    segment_pos: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, '...']:
    """Returns the convolved inputs.

    Args:
      inputs: [batch, ..., time on `axis`, hidden dimensions].
      axis: the time dimension.
      segment_pos: position of each step in its segment; a single segment when
        None.
    """
    outputs = inputs * self.theta.dconv_0
    for i in range(1, min(self.kernel_size, inputs.shape[axis])):
      earlier = shift_1d(inputs, i, axis)
      if segment_pos is not None:
        in_segment = _align(segment_pos >= i, axis, inputs.ndim)
        earlier = jnp.where(in_segment, earlier, jnp.zeros((), inputs.dtype))
      outputs += earlier * getattr(self.theta, f'dconv_{i}')
    return outputs

  def extend_step(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B'] | None = None,
  ) -> Float[Array, '...']:
    """Returns the convolved step `step`, without the time axis.

    Args:
      inputs: the inputs of all steps so far, time on `axis`.
      axis: the time dimension.
      step: index of the output step.
      segment_pos: position of this step in its segment, per example.
    """
    if segment_pos is None:
      segment_pos = jnp.full(inputs.shape[:1], step, jnp.int32)
    outputs = _take(inputs, step, axis) * self.theta.dconv_0
    for i in range(1, self.kernel_size):
      earlier = _take(inputs, jnp.maximum(step - i, 0), axis)
      in_segment = segment_pos.reshape(-1, *[1] * (earlier.ndim - 1)) >= i
      earlier = jnp.where(in_segment, earlier, jnp.zeros((), inputs.dtype))
      outputs += earlier * getattr(self.theta, f'dconv_{i}')
    return outputs


class BiasedCausalDepthwiseConv1D(CausalDepthwiseConv1D):
  """A causal depthwise convolution that adds a bias."""

  def setup(self) -> None:
    super().setup()
    self._create_constant('bias', 0.0)

  def __call__(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    segment_pos: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, '...']:
    """Returns the convolved inputs; see the base class.

    Args:
      inputs: [batch, ..., time on `axis`, hidden dimensions].
      axis: the time dimension.
      segment_pos: position of each step in its segment.
    """
    return super().__call__(inputs, axis, segment_pos) + self.theta.bias

  @override
  def extend_step(
    self,
    inputs: Float[Array, '...'],
    axis: int,
    step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B'] | None = None,
  ) -> Float[Array, '...']:
    outputs = super().extend_step(inputs, axis, step, segment_pos)
    return outputs + self.theta.bias


def shift_1d(
  inputs: Float[Array, '...'], offset: int, axis: int
) -> Float[Array, '...']:
  """Returns the inputs shifted by `offset` steps on `axis`, padded with 0."""
  length = inputs.shape[axis]
  overlap = jax.lax.slice_in_dim(
    inputs, max(-offset, 0), length - max(offset, 0), axis=axis
  )
  padding = [(0, 0)] * inputs.ndim
  padding[axis] = (max(offset, 0), max(-offset, 0))
  return jnp.pad(overlap, padding)


def _align(values: Array, axis: int, rank: int) -> Array:
  """Reshapes [B, T] to broadcast against `rank` dimensions, time on `axis`."""
  shape = [1] * rank
  shape[0], shape[axis] = values.shape
  return values.reshape(shape)


def _take(inputs: Array, step: Array | int, axis: int) -> Array:
  return jax.lax.dynamic_index_in_dim(inputs, step, axis, keepdims=False)
