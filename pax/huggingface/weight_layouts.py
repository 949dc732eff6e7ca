# SPDX-License-Identifier: Apache-2.0
"""Correspondence of one tensor of Hugging Face to one variable of Pax.

A variable is the tensor with dimensions split and transposed, or a stack of the
tensors of experts. Both directions are views: they copy no memory.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class WeightLayout:
  """A tensor, its variable, and the permutation of their elements."""

  # Name of the tensor.
  tensor: str
  # Slash path of the variable, `params/lm/softmax/w`.
  variable: str
  # The tensor's dimensions after the split of some, and their order in the
  # variable.
  split_shape: tuple[int, ...]
  axes: tuple[int, ...]
  tensor_shape: tuple[int, ...]
  # Whether the tensor is that of one expert, and the variable a stack of those
  # of all experts.
  is_expert: bool = False

  @property
  def variable_shape(self) -> tuple[int, ...]:
    """Shape of the variable, without the dimension of experts."""
    return tuple(self.split_shape[axis] for axis in self.axes)

  def check_shape(self, shape: tuple[int, ...]) -> None:
    """Checks the shape of the tensor in a file.

    Raises:
      ValueError: It is another one.
    """
    if shape != self.tensor_shape:
      raise ValueError(
        f'{self.tensor} must have shape {list(self.tensor_shape)} by'
        f' config.json, got {list(shape)}; config.json and the files must be of'
        ' one model'
      )

  def to_variable(self, tensor: np.ndarray) -> np.ndarray:
    """Returns the variable, or its part of an expert, as a view of the tensor.

    Raises:
      ValueError: The tensor has another shape.
    """
    self.check_shape(tensor.shape)
    return tensor.reshape(self.split_shape).transpose(self.axes)

  def to_tensor_order(self, variable: np.ndarray) -> np.ndarray:
    """Returns a view whose elements are in the order of the tensor."""
    return variable.transpose(np.argsort(self.axes))


def same(tensor: str, variable: str, *shape: int) -> WeightLayout:
  """Returns the layout of a variable that is equal to the tensor."""
  return split(tensor, variable, shape, shape)


def transposed(
  tensor: str, variable: str, outputs: int, inputs: int
) -> WeightLayout:
  """Returns the layout of a matrix [inputs, outputs], stored transposed.

  Args:
    tensor: Name of the tensor [outputs, inputs].
    variable: Path of the variable.
    outputs: Number of rows of the tensor.
    inputs: Number of its columns.
  """
  return split(tensor, variable, (outputs, inputs), (outputs, inputs), (1, 0))


def split(
  tensor: str,
  variable: str,
  tensor_shape: tuple[int, ...],
  split_shape: tuple[int, ...],
  axes: tuple[int, ...] | None = None,
) -> WeightLayout:
  """Returns the layout of a tensor with split and permuted dimensions.

  Args:
    tensor: Name of the tensor.
    variable: Path of the variable.
    tensor_shape: Shape of the tensor.
    split_shape: Its shape after the split of dimensions.
    axes: The order of these dimensions in the variable; None keeps it.

  Raises:
    ValueError: The shapes have different numbers of elements.
  """
  if math.prod(tensor_shape) != math.prod(split_shape):
    raise ValueError(
      f'{tensor}: {list(tensor_shape)} cannot be split to {list(split_shape)};'
      ' the sizes in config.json contradict each other'
    )
  axes = tuple(range(len(split_shape))) if axes is None else axes
  return WeightLayout(
    tensor, variable, tuple(split_shape), axes, tuple(tensor_shape)
  )
