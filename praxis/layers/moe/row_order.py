# SPDX-License-Identifier: Apache-2.0
"""Moves tokens to rows in the order of their experts, and back.

The gradients of both directions are gathers, too: that of XLA's gather is a
scatter, which TPUs run row by row and GPUs by atomic additions.

Shapes: N tokens, k choices of a token, R rows, at most L of a token, G groups,
a token or row has one or more dimensions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis import py_utils
from praxis.kernels import segment_sum

# Bits of the integers that TPUs sort.
_BITS = 32


class RowOrder(NamedTuple):
  """Rows of choices, sorted by group."""

  # The group of each row; G for rows without one, which come last.
  groups: Int[Array, ' R']
  # The token of each row; N for rows without a group.
  tokens: Int[Array, ' R']
  group_sizes: Int[Array, ' G']
  # The rows, sorted by token, and the tokens in this order.
  by_token: Int[Array, ' R']
  sorted_tokens: Int[Array, ' R']
  # The number of rows of each token and those before it.
  token_ends: Int[Array, ' N']
  # Where `by_token` has the rows of each token; R or more for none.
  places: Int[Array, 'N L']


def sort_by_group(
  groups: Int[Array, 'N k'], num_groups: int, num_rows: int
) -> RowOrder:
  """Returns the order of the rows.

  Args:
    groups: of each choice; `num_groups` for none. Those of a token differ.
    num_groups: G.
    num_rows: R, at least the number of choices with a group and at most N * k.
  """
  num_tokens, k = groups.shape
  sorted_groups, choices = (
    x[:num_rows] for x in _sort_with_indices(groups.reshape(-1), num_groups)
  )
  tokens = jnp.where(sorted_groups < num_groups, choices // k, num_tokens)
  sorted_tokens, by_token = _sort_with_indices(tokens, num_tokens)
  num_of_token = jnp.sum(groups < num_groups, axis=-1, dtype=jnp.int32)
  ends = jnp.cumsum(num_of_token)
  return RowOrder(
    groups=sorted_groups,
    tokens=tokens,
    # Not `bincount`, which is a scatter.
    group_sizes=jnp.sum(
      _is_of_group(groups, num_groups), axis=(1, 2), dtype=jnp.int32
    ),
    by_token=by_token,
    sorted_tokens=sorted_tokens,
    token_ends=ends,
    places=_places(ends - num_of_token, ends, min(k, num_groups), num_rows),
  )


def _sort_with_indices(
  keys: Int[Array, ' n'], max_key: int
) -> tuple[Int[Array, ' n'], Int[Array, ' n']]:
  """Returns the sorted keys and their indices, which ascend for equal keys.

  TPUs sort one array of key and index five times as fast as two arrays:
  https://github.com/vllm-project/tpu-inference/pull/3488.

  Args:
    keys: at least 0.
    max_key: the largest that there can be.
  """
  size = keys.shape[0]
  index_bits = (size - 1).bit_length()
  if max_key.bit_length() + index_bits > _BITS:
    sorted_keys, indices = jax.lax.sort((keys, jnp.arange(size)), num_keys=1)
    return sorted_keys, indices
  packed = keys.astype(jnp.uint32) << index_bits
  packed = jax.lax.sort(
    packed | jnp.arange(size, dtype=jnp.uint32), is_stable=False
  )
  sorted_keys, indices = packed >> index_bits, packed & ((1 << index_bits) - 1)
  return sorted_keys.astype(jnp.int32), indices.astype(jnp.int32)


def _places(
  starts: Int[Array, ' N'], ends: Int[Array, ' N'], most: int, num_rows: int
) -> Int[Array, 'N L']:
  """Returns `RowOrder.places`; no number occurs twice.

  Args:
    starts: of the rows of each token.
    ends: of the rows of each token.
    most: L.
    num_rows: R.
  """
  shape = starts.shape[0], most
  places = starts[:, jnp.newaxis] + jnp.arange(most, dtype=jnp.int32)
  others = num_rows + jnp.arange(math.prod(shape), dtype=jnp.int32)
  return jnp.where(places < ends[:, jnp.newaxis], places, others.reshape(shape))


def gather_gates(
  order: RowOrder, groups: Int[Array, 'N k'], gates: Float[Array, 'N k']
) -> Float[Array, ' R']:
  """Returns the gate of each row; 0 for rows without a group.

  It gathers a row with the gates of all groups of a token: TPUs gather and
  scatter single numbers one by one.

  Args:
    order: of the choices.
    groups: as for `sort_by_group`.
    gates: of the choices.
  """
  num_groups = order.group_sizes.shape[0]
  is_of_group = _is_of_group(groups, num_groups)
  of_groups = jnp.sum(jnp.where(is_of_group, gates.T, 0), axis=1)
  of_rows = gather_tokens(order, of_groups.T)
  is_own = order.groups[:, jnp.newaxis] == jnp.arange(num_groups)
  return jnp.sum(jnp.where(is_own, of_rows, 0), axis=-1)


def _is_of_group(
  groups: Int[Array, 'N k'], num_groups: int
) -> Bool[Array, 'G k N']:
  # N is last, as it fills whole tiles of TPUs.
  return jnp.arange(num_groups)[:, jnp.newaxis, jnp.newaxis] == groups.T


def gather_tokens(
  order: RowOrder, tokens: Float[Array, 'N ...']
) -> Float[Array, 'R ...']:
  """Returns the token of each row; any number for rows without a group."""
  if py_utils.target_platform() == 'cpu':
    return _gather_tokens_or_zeros(order, tokens)
  return _gather_tokens_by_vjp(order, tokens)


def sum_rows(
  order: RowOrder, rows: Float[Array, 'R ...']
) -> Float[Array, 'N ...']:
  """Returns the sum of the rows of each token."""
  if py_utils.target_platform() == 'cpu':
    return _sum_rows(order, rows)
  return _sum_rows_by_vjp(order, rows)


def _gather_tokens_or_zeros(
  order: RowOrder, tokens: Float[Array, 'N ...']
) -> Float[Array, 'R ...']:
  # Its derivative by XLA leaves rows without a group out.
  return tokens.at[order.tokens].get(mode='fill', fill_value=0)


def _gather_tokens(
  order: RowOrder, tokens: Float[Array, 'N ...']
) -> Float[Array, 'R ...']:
  return tokens.at[order.tokens].get(mode='clip')


def _sum_rows(
  order: RowOrder, rows: Float[Array, 'R ...']
) -> Float[Array, 'N ...']:
  if py_utils.target_platform() == 'tpu' and segment_sum.is_supported(rows):
    by_token = rows.at[order.by_token].get(
      mode='promise_in_bounds', unique_indices=True
    )
    return segment_sum.segment_sum(
      by_token, order.sorted_tokens, order.token_ends
    )
  of_places = order.by_token.at[order.places].get(mode='clip')
  is_row = order.places < rows.shape[0]
  of_tokens = rows.at[jnp.where(is_row, of_places, order.places)].get(
    mode='fill', fill_value=0, unique_indices=True
  )
  return jnp.sum(of_tokens, axis=1)


# Each is the transpose of the other. They have no derivatives in forward mode,
# which XLA's gathers on CPUs have.
_gather_tokens_by_vjp = jax.custom_vjp(_gather_tokens)
_sum_rows_by_vjp = jax.custom_vjp(_sum_rows)
_gather_tokens_by_vjp.defvjp(
  lambda order, tokens: (_gather_tokens(order, tokens), order),
  lambda order, drows: (None, _sum_rows_by_vjp(order, drows)),
)
_sum_rows_by_vjp.defvjp(
  lambda order, rows: (_sum_rows(order, rows), order),
  lambda order, dtokens: (None, _gather_tokens_by_vjp(order, dtokens)),
)
