# SPDX-License-Identifier: Apache-2.0
"""Weights as the matrices [fan-in, fan-out] that they multiply by.

Other dimensions, such as experts and repeated layers, count matrices.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer

# The dimensions of fan-in and those of fan-out, counted from the last.
MatrixAxes = tuple[list[int], list[int]]


def matrix_axes(hparams: base_layer.WeightHParams) -> MatrixAxes:
  """Returns the dimensions of a weight's matrices."""
  fan_in, fan_out = hparams.matrix_axes or (
    hparams.fan_in_axes,
    hparams.fan_out_axes,
  )
  if fan_in is None or fan_out is None:
    return [-2], [-1]
  rank = len(hparams.shape)
  return [a % rank - rank for a in fan_in], [a % rank - rank for a in fan_out]


def to_matrices(
  x: Float[Array, '...'], axes: MatrixAxes
) -> Float[Array, '*B m n']:
  """Returns the matrices of a weight."""
  fan_in_axes, fan_out_axes = axes
  ends = [*fan_in_axes, *fan_out_axes]
  moved = jnp.moveaxis(x, ends, range(-len(ends), 0))
  fan_in = math.prod(x.shape[axis] for axis in fan_in_axes)
  fan_out = math.prod(x.shape[axis] for axis in fan_out_axes)
  return moved.reshape(*moved.shape[: x.ndim - len(ends)], fan_in, fan_out)


def from_matrices(
  matrices: Float[Array, '*B m n'], shape: tuple[int, ...], axes: MatrixAxes
) -> Float[Array, '...']:
  """Returns the weight of which `to_matrices` made matrices.

  Args:
    matrices: those of the weight.
    shape: that of the weight.
    axes: the dimensions of the matrices in it.
  """
  ends = [*axes[0], *axes[1]]
  moved = matrices.reshape(
    *matrices.shape[:-2], *(shape[axis] for axis in ends)
  )
  return jnp.moveaxis(moved, range(-len(ends), 0), ends)
