# SPDX-License-Identifier: Apache-2.0
"""Sparsity masks: True for weights that are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from praxis.layers.quantization.sparsity import sparsity_hparams

SparsityScore = sparsity_hparams.SparsityScore
SparsityOrder = sparsity_hparams.SparsityOrder

_Weights = Shaped[Array, '*shape']
_Mask = Bool[Array, '*shape']


def apply_sparsity(
  inputs: Shaped[Array, '...'],
  mask: Bool[Array, '...'],
  channelwise_dim: int | None = None,
  pruned_value: Any = None,
) -> Shaped[Array, '...']:
  """Returns the pruned inputs.

  Args:
    inputs: the weights.
    mask: True for weights that are kept.
    channelwise_dim: removes the fully pruned channels of this dimension instead
      of setting pruned weights.
    pruned_value: the value of pruned weights; None: 0.
  """
  if channelwise_dim is None:
    pruned = 0 if pruned_value is None else pruned_value
    return jnp.where(mask, inputs, jnp.asarray(pruned, inputs.dtype))
  others = _other_axes(inputs.ndim, channelwise_dim)
  channels = jnp.nonzero(jnp.any(mask, axis=others))[0]
  return jnp.take(inputs, channels, axis=channelwise_dim)


def get_sparsity_mask(
  inputs: _Weights,
  n_sparsity: int = 0,
  m_sparsity: int = 0,
  order: str = 'R',
  block_size: int = 0,
  offset: int = 0,
) -> _Mask:
  """Returns the N:M mask, which keeps the N largest of every M elements.

  Args:
    inputs: scores; their absolute values are compared.
    n_sparsity: N.
    m_sparsity: M.
    order: 'R' if the M elements are adjacent in the last dimension, 'C' in the
      one before. If M does not divide it, they are adjacent in the flat array.
    block_size: number of adjacent elements that are pruned together.
    offset: distance of the M elements; 0: adjacent.

  Raises:
    ValueError: the arguments are invalid or do not divide the inputs.
  """
  _check_n_m(inputs, n_sparsity, m_sparsity, order, offset)
  scores = jnp.abs(inputs)
  axis = -1 if order == 'R' else -2
  if block_size > 1:
    scores = _block_sums(scores, axis, block_size)
  rows = scores if order == 'R' else jnp.swapaxes(scores, -1, -2)
  distance = max(1, offset)
  if offset > 0 and rows.size % (distance * m_sparsity):
    raise ValueError(
      f'the size of inputs must be a multiple of offset x M = {offset} x '
      f'{m_sparsity}, got {rows.size}'
    )
  lead = rows.shape[:-1]
  if rows.shape[-1] % (m_sparsity * distance):
    lead = ()
  groups = rows.reshape(*lead, -1, m_sparsity, distance)
  largest = _largest(jnp.swapaxes(groups, -1, -2), n_sparsity)
  mask = jnp.swapaxes(largest, -1, -2).reshape(rows.shape)
  mask = mask if order == 'R' else jnp.swapaxes(mask, -1, -2)
  return jnp.repeat(mask, block_size, axis=axis) if block_size > 1 else mask


def get_sparsity_mask_optimized_for_offset(
  inputs: Shaped[Array, 'I O'],
  n_sparsity: int = 0,
  m_sparsity: int = 0,
  order: str = 'R',
  offset: int = 0,
) -> Bool[Array, 'I O']:
  """Returns `get_sparsity_mask` of a matrix that offset x M divides.

  Args:
    inputs: scores.
    n_sparsity: N.
    m_sparsity: M.
    order: as in `get_sparsity_mask`.
    offset: distance of the M elements.

  Raises:
    ValueError: offset x M does not divide the dimension.
  """
  size = inputs.shape[1 if order == 'R' else 0]
  if offset <= 0 or size % (m_sparsity * offset):
    raise ValueError(
      f'offset x M must divide dimension {size} of inputs, got {offset} x '
      f'{m_sparsity}'
    )
  return get_sparsity_mask(inputs, n_sparsity, m_sparsity, order, offset=offset)


def get_sparsity_mask_channelwise(
  inputs: _Weights, prune_rate: Any, channel_dim: int = -1
) -> _Mask:
  """Returns the mask that keeps the channels with the largest sums.

  `prune_rate` is the fraction of pruned channels; at least one is kept.
  """
  others = _other_axes(inputs.ndim, channel_dim)
  sums = jnp.sum(inputs, axis=others)
  num_kept = jnp.maximum(1, jnp.round(sums.size * (1 - prune_rate)))
  rank = jnp.argsort(jnp.argsort(-sums))
  return jnp.broadcast_to(
    jnp.expand_dims(rank < num_kept, others), inputs.shape
  )


def get_sparsity_mask_unstructured(
  inputs: _Weights, mask: _Mask | None, prune_rate: Any
) -> _Mask:
  """Returns the mask that prunes the smallest `prune_rate` percent.

  Weights that `mask` prunes stay pruned. Of n weights a percentage p > 0 prunes
  floor(p / 100 * (n - 1)) + 1; of equal ones the first go.
  """
  magnitudes = jnp.abs(inputs).reshape(-1)
  if mask is not None:
    magnitudes = jnp.where(mask.reshape(-1), magnitudes, -1)
  last_pruned = jnp.asarray(prune_rate, jnp.float32) / 100 * (inputs.size - 1)
  rank = jnp.argsort(jnp.argsort(magnitudes))
  is_kept = (rank > jnp.floor(last_pruned)) | (jnp.asarray(prune_rate) <= 0)
  if mask is not None:
    is_kept &= mask.reshape(-1)
  return is_kept.reshape(inputs.shape)


def prune_inputs_n_m(
  inputs: _Weights,
  *,
  n: int,
  m: int,
  order: SparsityOrder | str = SparsityOrder.C,
  offset: int = 0,
) -> _Weights:
  """Sets all but the N largest of every M elements to zero.

  Args:
    inputs: the weights.
    n: N.
    m: M.
    order: as in `get_sparsity_mask`.
    offset: as in `get_sparsity_mask`.
  """
  mask = get_sparsity_mask(inputs, n, m, order=order, offset=offset)
  return apply_sparsity(inputs, mask)


def compute_score(
  weights: _Weights,
  score_func: SparsityScore = SparsityScore.MAGNITUDE,
  inputs: Shaped[Array, '...'] | None = None,
) -> _Weights:
  """Returns the importance scores of weights.

  Raises:
    ValueError: the score needs `inputs`, which are None.
  """
  if score_func == SparsityScore.MAGNITUDE:
    return score_weight_magnitude(weights)
  if inputs is None:
    raise ValueError(
      '`inputs` must be given for the score ACTIVATION_WEIGHTED, got None'
    )
  return score_activation_weighted(weights, inputs)


def score_weight_magnitude(weight: _Weights) -> _Weights:
  """Returns the absolute values."""
  return jnp.abs(weight)


def score_activation_weighted(
  weight: Shaped[Array, '...'], inputs: Shaped[Array, '...']
) -> Shaped[Array, '...']:
  """Returns |weight| times the sum of |inputs| over the batch.

  Raises:
    ValueError: the weight is not a matrix for these inputs.
  """
  if weight.ndim != 2 or inputs.shape[-1] != weight.shape[0]:
    raise ValueError(
      'ACTIVATION_WEIGHTED needs a matrix whose first dimension is the last of '
      f'the inputs, got shapes {weight.shape} and {inputs.shape}; use '
      'MAGNITUDE'
    )
  return jnp.einsum('...j,jk->jk', jnp.abs(inputs), jnp.abs(weight))


def dtype_bitwidth(dtype: Any) -> int:
  """Returns the number of bits of a dtype of weights.

  Raises:
    ValueError: the dtype is not supported.
  """
  widths = {'float32': 32, 'int32': 32, 'bfloat16': 16, 'int8': 8, 'int4': 4}
  name = jnp.dtype(dtype).name
  if name not in widths:
    raise ValueError(f'dtype must be one of {sorted(widths)}, got {name}')
  return widths[name]


def is_optimized_offset(
  order: str, offset: int, input_dtype: Any = jnp.float32
) -> bool:
  """Whether the offset is a multiple of the TPU tile in that order."""
  strides = {'C': 8 * (32 // dtype_bitwidth(input_dtype)), 'R': 128}
  return offset != 0 and order in strides and offset % strides[order] == 0


def _largest(scores: Shaped[Array, '*shape'], n: int) -> Bool[Array, '*shape']:
  """Returns the mask of the n largest in the last dimension."""
  _, indices = jax.lax.top_k(scores, n)
  size = scores.shape[-1]
  return jnp.any(jax.nn.one_hot(indices, size, dtype=jnp.bool_), axis=-2)


def _block_sums(scores: Array, axis: int, size: int) -> Array:
  axis %= scores.ndim
  shape = scores.shape
  if shape[axis] % size:
    raise ValueError(
      f'block_size must divide dimension {axis} of shape {shape}, got {size}'
    )
  blocks = (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
  return jnp.sum(scores.reshape(blocks), axis=axis + 1)


def _other_axes(ndim: int, axis: int) -> tuple[int, ...]:
  return tuple(i for i in range(ndim) if i != axis % ndim)


def _check_n_m(inputs: Array, n: int, m: int, order: str, offset: int) -> None:
  if not 0 <= n <= m:
    raise ValueError(f'N must be from 0 to M, got N={n} and M={m}')
  if order not in ('C', 'R'):
    raise ValueError(f"order must be 'C' or 'R', got {order!r}")
  if offset < 0:
    raise ValueError(f'offset must not be negative, got {offset}')
  if inputs.size % m:
    raise ValueError(
      f'the size of inputs must be a multiple of M={m}, got {inputs.size}'
    )
