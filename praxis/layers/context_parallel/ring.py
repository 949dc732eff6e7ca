# SPDX-License-Identifier: Apache-2.0
"""Attention to keys that are on other devices, which go around in a ring.

Each device keeps its queries; keys and values go from device to device until
all have seen them, so that no device ever holds a whole sequence. What is here
runs on one device of a mesh axis, within a shard_map.

A device has either one run of the sequence, or (balanced) two halves of one:
its own and, counted from the end, the same. Then every device has as many
visible keys in each round, where later positions are hidden.

Shapes: B batch, T queries and keys of a device, K · G heads of queries, K heads
of keys and values, H head.

References: Ring Attention, https://arxiv.org/abs/2310.01889; Striped
Attention, https://arxiv.org/abs/2311.09431.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.layers.context_parallel import block_attention
from praxis.layers.context_parallel.visibility import Sight

_Queries = Float[Array, 'B T K G H']
_Keys = Float[Array, 'B T K H']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
  """The devices of a ring, and what they compute."""

  # The mesh axis, and how many devices it has.
  axis: str
  size: int
  logits: block_attention.Logits
  # Whether devices hold halves from both ends; see the head of the file.
  balanced: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  ring: Ring, query: _Queries, key: _Keys, value: _Keys, sight: Sight
) -> Float[Array, 'B T K G H']:
  """Returns the mean of the values that each query sees, in float32."""
  outputs, _ = _attend_fwd(ring, query, key, value, sight)
  return outputs


def indices(ring: Ring, device: Array | int, length: int) -> Int[Array, 'T']:
  """Returns the indices in the sequence of a device's queries and keys."""
  if not ring.balanced:
    return device * length + jnp.arange(length)
  half = jnp.arange(length // 2)
  last = 2 * ring.size - 1 - device
  size = length // 2
  return jnp.concatenate([device * size + half, last * size + half])


class _Part(NamedTuple):
  """Which queries see which of the keys that are here."""

  rows: slice
  columns: slice


def _attend_fwd(
  ring: Ring, query: _Queries, key: _Keys, value: _Keys, sight: Sight
) -> Any:
  def visit(seen: Any, here: Any, index: Array, part: _Part) -> Any:
    rows, columns = part
    new = block_attention.see(
      block_attention.Seen(*(x[:, rows] for x in seen)),
      query[:, rows],
      *(x[:, columns] for x in here),
      sight.rows(rows).hidden(index[columns]),
      ring.logits,
    )
    seen = [x.at[:, rows].set(y) for x, y in zip(seen, new, strict=True)]
    return block_attention.Seen(*seen), here

  seen = block_attention.nothing(query, ring.logits)
  seen, _ = _go_around(ring, visit, seen, (key, value))
  outputs = seen.mean()
  return outputs, (query, key, value, sight, outputs, seen.log_total())


def _attend_bwd(ring: Ring, kept: Any, gradient: Array) -> Any:
  query, key, value, sight, outputs, log_total = kept
  along = jnp.sum(gradient * outputs, axis=-1)
  back = block_attention.Backward(query, log_total, gradient, along)

  def visit(of_query: Any, here: Any, index: Array, part: _Part) -> Any:
    rows, columns = part
    key, value, of_key, of_value = here
    new = block_attention.differentiate(
      block_attention.Backward(*(x[:, rows] for x in back)),
      key[:, columns],
      value[:, columns],
      sight.rows(rows).hidden(index[columns]),
      ring.logits,
    )
    of_key = of_key.at[:, columns].add(new.key)
    of_value = of_value.at[:, columns].add(new.value)
    of_query = of_query.at[:, rows].add(new.query)
    return of_query, (key, value, of_key, of_value)

  of_query, of_key, of_value = (
    jnp.zeros(x.shape, jnp.float32) for x in (query, key, value)
  )
  of_query, here = _go_around(
    ring, visit, of_query, (key, value, of_key, of_value)
  )
  # What the keys have gathered has one step left to where they came from.
  of_key, of_value = _pass_on(ring, here[2:])
  return (
    of_query.astype(query.dtype),
    of_key.astype(key.dtype),
    of_value.astype(value.dtype),
    None,
  )


attend.defvjp(_attend_fwd, _attend_bwd)


def _go_around(
  ring: Ring, visit: Callable[..., Any], stays: Any, travels: Any
) -> tuple[Any, Any]:
  """Calls `visit` on every device for the keys of every device.

  Args:
    ring: where this runs.
    visit: (stays, travels, indices of the keys, _Part) -> (stays, travels).
    stays: what belongs to the queries.
    travels: keys, values and what belongs to them.
  """
  length = travels[0].shape[1]
  half = length // 2
  everything = _Part(slice(0, length), slice(0, length))
  earlier = _Part(slice(0, length), slice(0, half))
  later = _Part(slice(half, length), slice(0, length))
  me = jax.lax.axis_index(ring.axis)

  def next_round(carry: Any, distance: Array) -> tuple[Any, None]:
    stays, travels = carry
    travels = _pass_on(ring, travels)
    source = (me - distance) % ring.size
    index = indices(ring, source, length)
    if not ring.balanced:
      return visit(stays, travels, index, everything), None
    # Of an earlier device, all queries see the half in front and none the
    # other; of a later one, the half behind of the queries sees all.
    return (
      jax.lax.cond(
        source < me,
        functools.partial(visit, part=earlier),
        functools.partial(visit, part=later),
        *(stays, travels, index),
      ),
      None,
    )

  first = visit(stays, travels, indices(ring, me, length), everything)
  carry, _ = jax.lax.scan(next_round, first, jnp.arange(1, ring.size))
  return carry


def _pass_on(ring: Ring, tree: Any) -> Any:
  """Sends arrays to the next device; returns those of the one before."""
  order = [(i, (i + 1) % ring.size) for i in range(ring.size)]
  return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, order), tree)
