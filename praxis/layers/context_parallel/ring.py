# SPDX-License-Identifier: Apache-2.0
"""Ring attention: keys and values pass from device to device.

Each device keeps its queries; keys and values visit all devices of a mesh axis,
so that no device holds a whole sequence. The functions run on one device,
within a shard_map.

A device holds either one shard of the sequence or, balanced, two pieces in
zigzag order (zigzag.py), so that under a causal mask all devices have equally
many visible keys in each round.

Shapes: B batch, T queries and keys of a device, K · G heads of queries, K heads
of keys and values, H head dimension.

References: Ring Attention, https://arxiv.org/abs/2310.01889; Striped
Attention, https://arxiv.org/abs/2311.09431.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.layers.context_parallel import block_attention
from praxis.layers.context_parallel.visibility import KeyVisibility

_Queries = Float[Array, 'B T K G H']
_Keys = Float[Array, 'B T K H']
_QueryState = TypeVar('_QueryState')
_KeyState = TypeVar('_KeyState', bound=tuple[Array, ...])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
  """A ring of devices and the options of its attention."""

  # The mesh axis and its number of devices.
  axis: str
  size: int
  transform: block_attention.LogitTransform
  # Whether devices hold pieces in zigzag order.
  balanced: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  ring: Ring,
  query: _Queries,
  key: _Keys,
  value: _Keys,
  visibility: KeyVisibility,
) -> Float[Array, 'B T K G H']:
  """Returns the attended values in float32.

  Args:
    ring: the devices and options.
    query: scaled queries of this device.
    key: keys of this device.
    value: values of this device.
    visibility: which keys of the sequence each query sees.
  """
  outputs, _ = _attend_fwd(ring, query, key, value, visibility)
  return outputs


def key_indices(
  ring: Ring, device: Array | int, length: int
) -> Int[Array, ' T']:
  """Returns the indices in the sequence of a device's queries and keys."""
  if not ring.balanced:
    return device * length + jnp.arange(length)
  piece = jnp.arange(length // 2)
  last = 2 * ring.size - 1 - device
  size = length // 2
  return jnp.concatenate([device * size + piece, last * size + piece])


class _Tile(NamedTuple):
  """The queries and keys that a round computes."""

  queries: slice
  keys: slice


class _Residuals(NamedTuple):
  """The residuals of the forward pass for the backward pass."""

  query: _Queries
  key: _Keys
  value: _Keys
  visibility: KeyVisibility
  outputs: Float[Array, 'B T K G H']
  log_sum_exp: Float[Array, 'B T K G']


def _attend_fwd(
  ring: Ring,
  query: _Queries,
  key: _Keys,
  value: _Keys,
  visibility: KeyVisibility,
) -> tuple[Float[Array, 'B T K G H'], _Residuals]:
  def visit(
    state: block_attention.SoftmaxState,
    key_value: tuple[_Keys, _Keys],
    key_index: Array,
    tile: _Tile,
  ) -> tuple[block_attention.SoftmaxState, tuple[_Keys, _Keys]]:
    rows, columns = tile
    key, value = key_value
    update = block_attention.attend_to_block(
      block_attention.SoftmaxState(*(x[:, rows] for x in state)),
      query[:, rows],
      key[:, columns],
      value[:, columns],
      visibility.slice_queries(rows).is_masked(key_index[columns]),
      ring.transform,
    )
    new = (x.at[:, rows].set(y) for x, y in zip(state, update, strict=True))
    return block_attention.SoftmaxState(*new), key_value

  state = block_attention.init_softmax_state(query, ring.transform)
  state, _ = _visit_all_keys(ring, visit, state, (key, value))
  outputs, log_sum_exp = state.outputs(), state.log_sum_exp()
  return outputs, _Residuals(
    query, key, value, visibility, outputs, log_sum_exp
  )


def _attend_bwd(
  ring: Ring, residuals: _Residuals, gradient: Float[Array, 'B T K G H']
) -> tuple[_Queries, _Keys, _Keys, None]:
  query, key, value, visibility, outputs, log_sum_exp = residuals
  inputs = block_attention.BackwardInputs(
    query, log_sum_exp, gradient, jnp.sum(gradient * outputs, axis=-1)
  )

  def visit(
    d_query: _Queries,
    keys: tuple[_Keys, _Keys, _Keys, _Keys],
    key_index: Array,
    tile: _Tile,
  ) -> tuple[_Queries, tuple[_Keys, _Keys, _Keys, _Keys]]:
    rows, columns = tile
    key, value, d_key, d_value = keys
    update = block_attention.block_gradients(
      block_attention.BackwardInputs(*(x[:, rows] for x in inputs)),
      key[:, columns],
      value[:, columns],
      visibility.slice_queries(rows).is_masked(key_index[columns]),
      ring.transform,
    )
    d_key = d_key.at[:, columns].add(update.key)
    d_value = d_value.at[:, columns].add(update.value)
    d_query = d_query.at[:, rows].add(update.query)
    return d_query, (key, value, d_key, d_value)

  d_query, d_key, d_value = (
    jnp.zeros(x.shape, jnp.float32) for x in (query, key, value)
  )
  d_query, keys = _visit_all_keys(
    ring, visit, d_query, (key, value, d_key, d_value)
  )
  # The gradients of keys and values are one step away from their own device.
  d_key, d_value = _pass_on(ring, keys[2:])
  return (
    d_query.astype(query.dtype),
    d_key.astype(key.dtype),
    d_value.astype(value.dtype),
    None,
  )


attend.defvjp(_attend_fwd, _attend_bwd)


def _visit_all_keys(
  ring: Ring,
  visit: Callable[..., tuple[_QueryState, _KeyState]],
  query_state: _QueryState,
  key_state: _KeyState,
) -> tuple[_QueryState, _KeyState]:
  """Calls `visit` with the keys of every device in turn.

  Args:
    ring: the devices and options.
    visit: (query_state, key_state, indices of the keys, _Tile) -> (query_state,
      key_state).
    query_state: arrays that stay with the queries of this device.
    key_state: keys, values and arrays that travel with them.
  """
  length = key_state[0].shape[1]
  half = length // 2
  all_pairs = _Tile(slice(0, length), slice(0, length))
  front_keys = _Tile(slice(0, length), slice(0, half))
  back_queries = _Tile(slice(half, length), slice(0, length))
  device = jax.lax.axis_index(ring.axis)

  def next_round(
    carry: tuple[_QueryState, _KeyState], distance: Array
  ) -> tuple[tuple[_QueryState, _KeyState], None]:
    query_state, key_state = carry
    key_state = _pass_on(ring, key_state)
    source = (device - distance) % ring.size
    key_index = key_indices(ring, source, length)
    if not ring.balanced:
      return visit(query_state, key_state, key_index, all_pairs), None
    # Under a causal mask all queries see the front piece of an earlier device
    # and none its back piece; of a later device, only the back queries see any
    # key, and they see all.
    return (
      jax.lax.cond(
        source < device,
        functools.partial(visit, tile=front_keys),
        functools.partial(visit, tile=back_queries),
        *(query_state, key_state, key_index),
      ),
      None,
    )

  own_index = key_indices(ring, device, length)
  carry = visit(query_state, key_state, own_index, all_pairs)
  carry, _ = jax.lax.scan(next_round, carry, jnp.arange(1, ring.size))
  return carry


def _pass_on(ring: Ring, tree: _KeyState) -> _KeyState:
  """Sends arrays to the next device; returns those of the previous one."""
  permutation = [(i, (i + 1) % ring.size) for i in range(ring.size)]
  return jax.tree.map(
    lambda x: jax.lax.ppermute(x, ring.axis, permutation), tree
  )
