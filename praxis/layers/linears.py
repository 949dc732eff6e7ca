# SPDX-License-Identifier: Apache-2.0
"""Linear layers, feed-forward layers and stacks of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import activations, base_ops

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class Linear(base_layer.BaseLayer):
  """A linear map of the last dimension, without bias."""

  # Sizes of the last dimension of the input and of the output.
  input_dims: int = 0
  output_dims: int = 0
  # The initializer of the weight; None: params_init.
  weight_init: WeightInit | None = None
  # Computes the einsum; quantized variants replace it.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)

  class ActivationSharding(base_layer.ActivationSharding):
    # The output of a decode step, which has no time dimension.
    extend_step_out: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    self._check_positive('input_dims', 'output_dims')
    shape = [self.input_dims, self.output_dims]
    _create_weight(self, 'w', shape, self.weight_init)
    self.create_child('einsum', self.einsum_tpl.clone())

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    outputs = self.einsum('...i,io->...o', inputs, self.theta.w)
    mapping = step_mapping(self.activation_split_dims_mapping, outputs.ndim)
    return base_layer.maybe_shard(outputs, mapping, self.mesh_axis_names)


class Bias(base_layer.BaseLayer):
  """Adds a vector to the last dimension."""

  # Size of the last dimension.
  dims: int = 0
  # The initial value of all entries.
  bias_init: float | None = 0.0

  def setup(self) -> None:
    self._check_positive('dims')
    init = WeightInit.Constant(self.bias_init or 0.0)
    _create_weight(self, 'b', [self.dims], init)

  def __call__(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B D']:
    inputs, bias = base_ops.operands(inputs, self.theta.b)
    return inputs + bias


class FeedForward(base_layer.BaseLayer):
  """A linear layer, a bias and an activation."""

  # Sizes of the last dimension of the input and of the output.
  input_dims: int = 0
  output_dims: int = 0
  # Whether to add a bias.
  has_bias: bool = True
  # The components.
  linear_tpl: LayerTpl = template_field(Linear)
  bias_tpl: LayerTpl = template_field(Bias)
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # The initializer of the weight; None: params_init.
  weight_init: WeightInit | None = None
  # The initial value of all entries of the bias.
  bias_init: float | None = 0.0
  # The name of the value before the activation, for remat policies.
  checkpoint_str: str | None = None

  class ActivationSharding(base_layer.ActivationSharding):
    # The output of a decode step, which has no time dimension.
    extend_step_out: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    outputs = self.activation_split_dims_mapping
    linear = self.linear_tpl.clone().set(
      input_dims=self.input_dims,
      output_dims=self.output_dims,
      weight_init=self.weight_init,
    )
    linear.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.wt
    linear.activation_split_dims_mapping.out = outputs.out
    linear.activation_split_dims_mapping.extend_step_out = (
      outputs.extend_step_out
    )
    self.create_child('linear', linear)
    if self.has_bias:
      bias = self.bias_tpl.clone().set(
        dims=self.output_dims, bias_init=self.bias_init
      )
      if self.mesh_shape is not None and outputs.out is not None:
        bias.weight_split_dims_mapping.wt = [outputs.out[-1]]
      self.create_child('bias', bias)
    self.create_child('activation', self.activation_tpl.clone())

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    projected = self.linear(inputs)
    if self.has_bias:
      projected = self.bias(projected)
    if self.checkpoint_str is not None:
      projected = checkpoint_name(projected, self.checkpoint_str)
    return self.activation(projected)


class MLPBlock(base_layer.BaseLayer):
  """A multilayer perceptron.

  The first goes from `ff_tpl.input_dims` to `hidden_dims`, the last to
  `ff_tpl.output_dims`; a single one from input to output.
  """

  # Number of layers.
  num_layers: int = 3
  # Size of the activations between layers.
  hidden_dims: int = 128
  # Whether the last layer has an activation.
  activate_final: bool = True
  # The layers; its input_dims and output_dims are those of the block.
  ff_tpl: LayerTpl = template_field(FeedForward)

  def setup(self) -> None:
    self._check_positive('num_layers', 'hidden_dims')
    hidden = [self.hidden_dims] * (self.num_layers - 1)
    dims = [self.ff_tpl.input_dims, *hidden, self.ff_tpl.output_dims]
    layers = [
      self.ff_tpl.clone().set(input_dims=i, output_dims=o)
      for i, o in zip(dims[:-1], dims[1:], strict=True)
    ]
    if not self.activate_final:
      layers[-1].activation_tpl = pax_fiddle.Config(activations.Identity)
    self.create_children('mlp_layers', layers)

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    outputs = inputs
    for layer in self.mlp_layers:
      outputs = layer(outputs)
    return outputs


class StackingOverTime(base_layer.BaseLayer):
  """Stacks each frame with its neighbors and subsamples by `stride`."""

  # Number of frames before and after each frame to stack with it.
  left_context: int = 0
  right_context: int = 0
  # The subsampling factor.
  stride: int = 0
  # Whether the sequence is padded by copies of its first or last frame, instead
  # of zeros.
  pad_with_left_frame: bool = False
  pad_with_right_frame: bool = False
  # 'reduce_min': an output is padding if all its frames are; 'reduce_max': if
  # any is.
  padding_reduce_option: str = 'reduce_min'

  def setup(self) -> None:
    self._check_positive('stride')
    for name in ('left_context', 'right_context'):
      if getattr(self, name) < 0:
        raise ValueError(
          f'{name} of StackingOverTime {self.name!r} must not be negative, got '
          f'{getattr(self, name)}'
        )
    if self.padding_reduce_option not in ('reduce_min', 'reduce_max'):
      raise ValueError(
        "padding_reduce_option must be 'reduce_min' or 'reduce_max', got "
        f'{self.padding_reduce_option!r}'
      )

  @property
  def window_size(self) -> int:
    """Number of frames in each output."""
    return self.left_context + 1 + self.right_context

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Float[Array, 'B T 1'] | None = None,
  ) -> tuple[Float[Array, 'B S F'], Float[Array, 'B S 1']]:
    """Returns the stacked frames, S = ceil(T / stride), and their paddings."""
    if paddings is None:
      paddings = jnp.zeros([*inputs.shape[:2], 1], inputs.dtype)
    if self.window_size == 1 and self.stride == 1:
      return inputs, paddings
    stacked = self._stack(inputs)
    window_paddings = self._stack(paddings, fill=1.0)
    reduce = jnp.min if self.padding_reduce_option == 'reduce_min' else jnp.max
    return stacked, reduce(window_paddings, axis=-1, keepdims=True)

  def _stack(
    self, frames: Float[Array, 'B T D'], fill: float = 0.0
  ) -> Float[Array, 'B S F']:
    length = frames.shape[1]
    # No part of an array is set: XLA sets it in each shard of the length.
    left, right = (
      jnp.repeat(frame if is_repeated else jnp.full_like(frame, fill), n, 1)
      for frame, is_repeated, n in (
        (frames[:, :1], self.pad_with_left_frame, self.left_context),
        (frames[:, -1:], self.pad_with_right_frame, self.right_context),
      )
    )
    padded = jnp.concatenate([left, frames, right], axis=1)
    shifted = [
      padded[:, i : i + length : self.stride] for i in range(self.window_size)
    ]
    return jnp.concatenate(shifted, axis=-1)

  def unstack(self, stacked: Float[Array, 'B S F']) -> Float[Array, 'B U D']:
    """Returns the frames that the windows hold.

    U = (S - 1) * stride + right_context + 1. They are the inputs of `__call__`,
    trimmed or padded to that length.

    Raises:
      ValueError: the stride is larger than the window, which leaves gaps.
    """
    if self.stride > self.window_size:
      raise ValueError(
        f'unstack needs a stride of at most {self.window_size}, the size of the'
        f' window, got {self.stride}'
      )
    batch, length, width = stacked.shape
    windows = stacked.reshape(batch, length, self.window_size, -1)
    # Frame t is in the window centred at or before it, or, if it is right of
    # that window, in the next one.
    frame = np.arange((length - 1) * self.stride + self.right_context + 1)
    window = np.minimum(frame // self.stride, length - 1)
    offset = frame - window * self.stride
    is_in_next = (offset > self.right_context) & (window < length - 1)
    window = window + is_in_next
    position = self.left_context + offset - self.stride * is_in_next
    return windows[:, window, position]


def project_last_dim(
  inputs: Float[Array, '*B I'], weight: Float[Array, 'I O']
) -> Float[Array, '*B O']:
  """Returns the product of the last dimension with `weight`."""
  return jnp.einsum('...i,io->...o', inputs, weight)


def step_mapping(sharding: Any, rank: int) -> pytypes.SplitDimsMapping:
  """Returns the sharding of an output of `rank`.

  A decode step has no time dimension (rank 2): its sharding is extend_step_out,
  or `out` without time.
  """
  is_step = rank == 2 and sharding.out is not None and len(sharding.out) != 2
  if is_step and sharding.extend_step_out is not None:
    return sharding.extend_step_out
  return without_time(sharding.out, rank)


def without_time(
  mapping: pytypes.SplitDimsMapping, rank: int
) -> pytypes.SplitDimsMapping:
  """Returns `mapping`, reduced to its first and last entry for rank 2."""
  if mapping is None or len(mapping) == rank or rank != 2:
    return mapping
  return [mapping[0], mapping[-1]]


def _create_weight(
  layer: base_layer.BaseLayer,
  name: str,
  shape: list[int],
  init: WeightInit | None,
) -> None:
  """Creates a variable with the layer's weight sharding."""
  sharding = layer.weight_split_dims_mapping.wt
  layer.create_variable(
    name,
    WeightHParams(
      shape=shape,
      init=init,
      tensor_split_dims_mapping=sharding,
      mesh_shape=layer.mesh_shape,
    ),
  )
