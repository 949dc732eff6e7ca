# SPDX-License-Identifier: Apache-2.0
"""Sends rows of tokens to the devices of their experts, and results back.

Each device sends its rows, sorted by expert, by a ragged all-to-all. Rows
arrive sorted by expert, too: those that devices send for one expert are
contiguous, so that grouped products need no further order.

The transpose of either direction is the other one. XLA's CPU compiler has no
ragged all-to-all.

Shapes: P devices, E experts of a device, R rows of tokens, B rows of a buffer,
M model dimension, in which rows may have several dimensions (`in_tiles`).

References: jax.lax.ragged_all_to_all.
"""

from __future__ import annotations

import fractions
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.layers.moe import routed_rows

# Of arrays on TPUs.
_TILE = (8, 128)


class Slices(NamedTuple):
  """The slices that a device exchanges, by other device and expert."""

  # Where the rows of a device that it sends begin, and where those that it
  # receives begin in its buffer.
  row_offsets: Int[Array, 'P E']
  buffer_offsets: Int[Array, 'P E']
  # Where the other device has them: in its buffer, and among its rows.
  remote_buffer_offsets: Int[Array, 'P E']
  remote_row_offsets: Int[Array, 'P E']
  # Numbers of sent and received rows.
  sent: Int[Array, 'P E']
  received: Int[Array, 'P E']

  @property
  def group_sizes(self) -> Int[Array, ' E']:
    """Rows of each expert in the buffer."""
    return jnp.sum(self.received, axis=0)


def slices_of(
  counts: Int[Array, 'P P E'], device: Int[Array, ''] | int
) -> Slices:
  """Returns the slices of a device.

  Args:
    counts: rows that each device (first) has for the experts of each device.
    device: index among the devices.
  """
  # By device of the rows, their offsets; by device of the experts and expert,
  # the offset of all rows, and in it that of each device of the rows.
  num_devices = counts.shape[0]
  flat = counts.reshape(num_devices, -1)
  row_offsets = _exclusive_cumsum(flat, 1).reshape(counts.shape)
  starts = _exclusive_cumsum(jnp.sum(counts, axis=0), 1)
  buffer_offsets = starts + _exclusive_cumsum(counts, 0)
  return Slices(
    row_offsets=row_offsets[device],
    buffer_offsets=buffer_offsets[:, device],
    remote_buffer_offsets=buffer_offsets[device],
    remote_row_offsets=row_offsets[:, device],
    sent=counts[device],
    received=counts[:, device],
  )


def in_tiles(rows: Float[Array, 'R M']) -> Float[Array, 'R ...']:
  """Returns the rows as [R, M / 128, 128] if they fill tiles of TPUs.

  Such a row is contiguous in memory, as those of an exchange must be. The tiles
  of other arrays have parts of several rows.
  """
  if rows.shape[1] % math.prod(_TILE):
    return rows
  return rows.reshape(rows.shape[0], -1, _TILE[1])


def send(
  rows: Float[Array, 'R ...'],
  slices: Slices,
  num_buffer_rows: int,
  axes: tuple[str, ...],
) -> Float[Array, 'B ...']:
  """Returns the rows that a device receives; those after them are undefined.

  Args:
    rows: sorted by device and expert.
    slices: of the device.
    num_buffer_rows: B, at least the number of received rows.
    axes: mesh axes of the devices.
  """
  return _send(rows, slices, (rows.shape[0], num_buffer_rows), axes)


def send_back(
  buffer: Float[Array, 'B ...'],
  slices: Slices,
  num_rows: int,
  axes: tuple[str, ...],
) -> Float[Array, 'R ...']:
  """Returns the rows that `send` sent, from the buffers; others are undefined.

  Args:
    buffer: in the order of `send`.
    slices: of the device.
    num_rows: R.
    axes: mesh axes of the devices.
  """
  return _send_back(buffer, slices, (num_rows, buffer.shape[0]), axes)


# Both have (R, B) as an argument, which the transposes need.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _send(
  rows: Float[Array, 'R ...'],
  slices: Slices,
  sizes: tuple[int, int],
  axes: tuple[str, ...],
) -> Float[Array, 'B ...']:
  return _exchange(
    rows,
    sizes[1],
    (slices.row_offsets, slices.sent),
    (slices.remote_buffer_offsets, slices.received),
    axes,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _send_back(
  buffer: Float[Array, 'B ...'],
  slices: Slices,
  sizes: tuple[int, int],
  axes: tuple[str, ...],
) -> Float[Array, 'R ...']:
  return _exchange(
    buffer,
    sizes[0],
    (slices.buffer_offsets, slices.received),
    (slices.remote_row_offsets, slices.sent),
    axes,
  )


_send.defvjp(
  lambda rows, slices, sizes, axes: (
    _send(rows, slices, sizes, axes),
    slices,
  ),
  lambda sizes, axes, slices, dbuffer: (
    _send_back(dbuffer, slices, sizes, axes),
    None,
  ),
)
_send_back.defvjp(
  lambda buffer, slices, sizes, axes: (
    _send_back(buffer, slices, sizes, axes),
    slices,
  ),
  lambda sizes, axes, slices, drows: (
    _send(drows, slices, sizes, axes),
    None,
  ),
)


def _exchange(
  operand: Float[Array, 'N ...'],
  num_rows: int,
  local: tuple[Int[Array, 'P E'], Int[Array, 'P E']],
  remote: tuple[Int[Array, 'P E'], Int[Array, 'P E']],
  axes: tuple[str, ...],
) -> Float[Array, 'K ...']:
  """Returns K rows: those that the device receives, and undefined ones.

  Args:
    operand: has the rows to send.
    num_rows: K.
    local: offsets and numbers of the rows that the device sends.
    remote: offsets of these rows in the results of their receivers, and the
      numbers of rows that the device receives.
    axes: mesh axes of the devices.
  """
  result = jax.lax.empty((num_rows, *operand.shape[1:]), operand.dtype)
  slices = (x.reshape(-1) for x in (*local, *remote))
  # The smaller array has no space for more rows than balanced experts have.
  balanced = min(num_rows, operand.shape[0])
  with routed_rows.scope(fractions.Fraction(balanced, operand.shape[0])):
    return jax.lax.ragged_all_to_all(operand, result, *slices, axis_name=axes)


def _exclusive_cumsum(x: Int[Array, '...'], axis: int) -> Int[Array, '...']:
  return jnp.cumsum(x, axis=axis) - x
