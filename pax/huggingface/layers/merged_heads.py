# SPDX-License-Identifier: Apache-2.0
"""Tensors that have the heads of several variables, one after another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pax.huggingface import weight_layouts
from pax.huggingface.weight_layouts import WeightLayout

# The sizes of heads, (N, H) or (N,), by the names of layers, in the order of
# the tensor.
Heads = Mapping[str, tuple[int, ...]]


def projections(
  source: str, target: str, model_dims: int, heads: Heads
) -> Iterator[WeightLayout]:
  """Yields the layouts of the variables [model_dims, heads] of a projection.

  Args:
    source: Name of the projection in the files.
    target: Path of the layer that has the layers of `heads`.
    model_dims: Dimension of the model.
    heads: Those of each layer.
  """
  for name, part in _slices(heads).items():
    yield weight_layouts.transposed(
      f'{source}.weight', f'{target}/{name}/w', _total(heads), model_dims
    ).take(part, merged_shape=(model_dims, *heads[name]))


def convolutions(
  source: str,
  target: str,
  heads: Heads,
  kernel_size: int,
  *,
  has_bias: bool = False,
) -> Iterator[WeightLayout]:
  """Yields the layouts of depthwise convolutions over time.

  Args:
    source: Name of the convolution, whose last element has no delay.
    target: Path of the layer that has the convolutions.
    heads: Those of each convolution, by the names of what they convolve.
    kernel_size: Number of steps.
    has_bias: Whether they have biases.
  """
  total = _total(heads)
  for name, part in _slices(heads).items():
    conv = f'{target}/{name}_conv'
    for delay in range(kernel_size):
      tap = kernel_size - 1 - delay
      yield weight_layouts.same(
        f'{source}.weight', f'{conv}/dconv_{delay}', total, 1, kernel_size
      ).take(
        part,
        slice(None),
        slice(tap, tap + 1),
        merged_shape=heads[name],
      )
    if has_bias:
      yield weight_layouts.same(f'{source}.bias', f'{conv}/bias', total).take(
        part, merged_shape=heads[name]
      )


def _total(heads: Heads) -> int:
  return sum(map(math.prod, heads.values()))


def _slices(heads: Heads) -> dict[str, slice]:
  """Returns the elements of each layer."""
  slices, first = {}, 0
  for name, sizes in heads.items():
    end = first + math.prod(sizes)
    slices[name] = slice(first, end)
    first = end
  return slices
