# SPDX-License-Identifier: Apache-2.0
"""Results per token in chunks of time steps, for less memory of logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from praxis import base_layer


def map_chunks(
  fn: Callable[..., Any],
  layer: base_layer.BaseLayer,
  arrays: tuple[Array | None, ...],
  chunk_size: int,
) -> Any:
  """Returns `fn(layer, *arrays)`, computed in chunks of time steps.

  The backward pass computes each chunk again. There are no chunks while the
  layer is initialized, as children cannot create variables within a scan, and
  none of fewer time steps than one has.

  Args:
    fn: returns arrays [B, T, ...]; it reads the weights of the layer, and
      creates or updates no variable.
    layer: has the weights.
    arrays: of shape [B, T, ...], or None.
    chunk_size: number of time steps in a chunk.
  """
  length = jax.tree.leaves(arrays)[0].shape[1]
  if layer.is_initializing() or length < chunk_size:
    return fn(layer, *arrays)

  def step(layer: Any, carry: Any, chunk: Any) -> tuple[Any, Any]:
    return carry, fn(layer, *chunk)

  scan = nn.scan(
    nn.remat(step, prevent_cse=False),
    variable_broadcast=[base_layer.PARAMS, base_layer.NON_TRAINABLE],
  )
  _, results = scan(
    layer, (), jax.tree.map(lambda x: _split_time(x, chunk_size), arrays)
  )
  return jax.tree.map(lambda x: _join_time(x)[:, :length], results)


def _split_time(x: Array, chunk_size: int) -> Array:
  """Reshapes [B, T, ...] to [chunk, B, time, ...], padded with zeros."""
  num_chunks = -(-x.shape[1] // chunk_size)
  extra = num_chunks * chunk_size - x.shape[1]
  x = jnp.pad(x, [(0, 0), (0, extra)] + [(0, 0)] * (x.ndim - 2))
  shape = (x.shape[0], num_chunks, chunk_size, *x.shape[2:])
  return jnp.moveaxis(x.reshape(shape), 1, 0)


def _join_time(x: Array) -> Array:
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])
