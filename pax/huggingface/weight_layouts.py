# SPDX-License-Identifier: Apache-2.0
"""Correspondence of tensors of Hugging Face to variables of Pax.

A variable is the tensor with dimensions split and transposed, a part of it, or
a stack of the tensors of experts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class WeightLayout:
  """A tensor, its variable, and the order of their elements.

  The variable of a whole tensor is a view of it: it copies no memory.
  """

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
  # Which elements of each split dimension the variable has; () for all. Other
  # variables have the others.
  part: tuple[slice, ...] = ()
  # Shape of the variable where it merges dimensions; None where it does not.
  merged_shape: tuple[int, ...] | None = None
  # Whether the variable is [outputs, inputs], not [inputs, outputs].
  has_outputs_first: bool = False

  @property
  def variable_shape(self) -> tuple[int, ...]:
    """Shape of the variable, without the dimension of experts."""
    return self.merged_shape or self._ordered_shape()

  def _ordered_shape(self) -> tuple[int, ...]:
    part = self.part or (slice(None),) * len(self.split_shape)
    sizes = [
      len(range(size)[of_dimension])
      for size, of_dimension in zip(self.split_shape, part, strict=True)
    ]
    return tuple(sizes[axis] for axis in self.axes)

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
    """Returns the variable, or its part of an expert.

    Raises:
      ValueError: The tensor has another shape.
    """
    self.check_shape(tensor.shape)
    ordered = tensor.reshape(self.split_shape)[self.part].transpose(self.axes)
    return ordered.reshape(self.variable_shape)

  def to_tensor_order(self, variable: np.ndarray) -> np.ndarray:
    """Returns the elements in the order of the tensor, or of its part."""
    ordered = variable.reshape(self._ordered_shape())
    return ordered.transpose(np.argsort(self.axes))

  def to_matrices(
    self, variable: np.ndarray, shape: tuple[int, ...]
  ) -> np.ndarray:
    """Returns the matrices [..., I, O] of the variable.

    Args:
      variable: The variable.
      shape: That of the matrices.
    """
    if not self.has_outputs_first:
      return variable.reshape(shape)
    *stack, inputs, outputs = shape
    return variable.reshape(*stack, outputs, inputs).swapaxes(-1, -2)

  def from_matrices(self, matrices: np.ndarray) -> np.ndarray:
    """Returns the variable of matrices [..., I, O]."""
    if self.has_outputs_first:
      matrices = matrices.swapaxes(-1, -2)
    return matrices.reshape(self.variable_shape)

  def take(
    self, *part: slice, merged_shape: tuple[int, ...] | None = None
  ) -> WeightLayout:
    """Returns the layout of a variable that has a part of the tensor.

    Args:
      *part: Elements of the first split dimensions.
      merged_shape: See the fields.
    """
    missing = len(self.split_shape) - len(part)
    return dataclasses.replace(
      self, part=part + (slice(None),) * missing, merged_shape=merged_shape
    )


class PartialTensors:
  """Tensors that several variables are parts of, until all parts are known."""

  def __init__(self, layouts: Mapping[str, Sequence[WeightLayout]]) -> None:
    """Creates no tensor yet.

    Args:
      layouts: Those of each tensor by its name.
    """
    self._missing = {name: len(parts) for name, parts in layouts.items()}
    self._tensors: dict[str, np.ndarray] = {}

  def add(
    self, name: str, layout: WeightLayout, variable: np.ndarray
  ) -> np.ndarray | None:
    """Returns the tensor if its other parts are known, else None.

    Args:
      name: Name of the tensor.
      layout: Of the variable.
      variable: The variable.
    """
    ordered = layout.to_tensor_order(variable)
    if not layout.part:
      return ordered
    if name not in self._tensors:
      self._tensors[name] = np.empty(layout.tensor_shape, variable.dtype)
    self._tensors[name].reshape(layout.split_shape)[layout.part] = ordered
    self._missing[name] -= 1
    return None if self._missing[name] else self._tensors.pop(name)


def by_tensor(
  layouts: Iterable[WeightLayout],
) -> dict[str, list[WeightLayout]]:
  """Returns the layouts by the names of their tensors, in order."""
  groups: dict[str, list[WeightLayout]] = {}
  for layout in layouts:
    groups.setdefault(layout.tensor, []).append(layout)
  return groups


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


def from_heads(
  tensor: str, variable: str, outputs: int, heads: tuple[int, int]
) -> WeightLayout:
  """Returns the layout of an AttentionProjection from heads.

  Args:
    tensor: Name of the tensor [outputs, N * H].
    variable: Path of the variable [outputs, N, H].
    outputs: Number of outputs.
    heads: The sizes N and H.
  """
  layout = split(
    tensor, variable, (outputs, math.prod(heads)), (outputs, *heads)
  )
  return dataclasses.replace(layout, has_outputs_first=True)


def feed_forward(
  source: str,
  target: str,
  model_dims: int,
  hidden_dims: int,
  *,
  has_gates: bool = True,
  has_bias: bool = False,
) -> Iterator[WeightLayout]:
  """Yields the layouts of the projections of a TransformerFeedForward.

  Args:
    source: Name of the layer in the files, which has `up_proj`, `down_proj` and
      `gate_proj`.
    target: Path of the layer.
    model_dims: Dimension of the model.
    hidden_dims: Hidden dimension.
    has_gates: Whether it has `gate_proj`.
    has_bias: Whether projections have biases.
  """
  gate = ('gate_proj', 'ffn_layer1_gate', hidden_dims, model_dims)
  for projection, name, outputs, inputs in (
    *([gate] if has_gates else []),
    ('up_proj', 'ffn_layer1', hidden_dims, model_dims),
    ('down_proj', 'ffn_layer2', model_dims, hidden_dims),
  ):
    tensor, variable = f'{source}.{projection}', f'{target}/{name}'
    yield transposed(
      f'{tensor}.weight', f'{variable}/linear/w', outputs, inputs
    )
    if has_bias:
      yield same(f'{tensor}.bias', f'{variable}/bias/b', outputs)


def fused_feed_forward(
  inputs: str,
  outputs: str,
  target: str,
  model_dims: int,
  hidden_dims: int,
) -> Iterator[WeightLayout]:
  """Yields the layouts of the same, whose first two projections are one tensor.

  Args:
    inputs: Name of this projection in the files, without biases.
    outputs: Name of the last one.
    target: Path of the layer.
    model_dims: Dimension of the model.
    hidden_dims: Hidden dimension.
  """
  for first, name in ((0, 'ffn_layer1_gate'), (hidden_dims, 'ffn_layer1')):
    yield transposed(
      f'{inputs}.weight',
      f'{target}/{name}/linear/w',
      2 * hidden_dims,
      model_dims,
    ).take(slice(first, first + hidden_dims))
  yield transposed(
    f'{outputs}.weight',
    f'{target}/ffn_layer2/linear/w',
    model_dims,
    hidden_dims,
  )


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
