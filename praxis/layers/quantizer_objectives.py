# SPDX-License-Identifier: Apache-2.0
"""Measures of codebook usage: perplexity, entropy and coverage."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


def scatter_nd(
  indices: Int[Array, '*N R'],
  updates: Shaped[Array, '*N *rest'],
  shape: Sequence[int],
) -> Shaped[Array, '...']:
  """Returns zeros of `shape` with `updates` added at `indices`."""
  zeros = jnp.zeros(shape, updates.dtype)
  updates = base_layer.zero_shard_padding(updates, indices.ndim - 1)
  return zeros.at[tuple(jnp.moveaxis(indices, -1, 0))].add(updates)


def batch_pplx_entropy_from_codes(
  codes: Num[Array, '*B G'],
  num_classes: int,
  *,
  paddings: Num[Array, '*B'] | None = None,
  data_parallel_axis: str | None = None,
) -> tuple[Float[Array, ''], Float[Array, ''], Float[Array, 'G {num_classes}']]:
  """Returns the perplexity, its logarithm, and the histogram of codes.

  Args:
    codes: a code in [0, num_classes) for each of G groups.
    num_classes: the number of codes.
    paddings: 1 at padding, which is not counted.
    data_parallel_axis: a mapped axis to sum the histogram over.

  Returns:
    The mean over groups of the perplexity, its logarithm, and the histogram.

  Raises:
    ValueError: codes have no group dimension.
  """
  if codes.ndim < 2:
    raise ValueError(f'codes must be [..., groups], got shape {codes.shape}')
  groups = codes.shape[-1]
  codes = codes.astype(jnp.int32).reshape(-1, groups)
  counts = jnp.ones([len(codes)], jnp.float32)
  if paddings is not None:
    counts -= paddings.astype(jnp.float32).reshape(-1)
  group = jnp.broadcast_to(jnp.arange(groups), codes.shape)
  histogram = scatter_nd(
    jnp.stack([group, codes], axis=-1),
    jnp.broadcast_to(counts[:, None], codes.shape),
    (groups, num_classes),
  )
  total = jnp.sum(counts)
  if data_parallel_axis is not None:
    histogram, total = jax.lax.psum((histogram, total), data_parallel_axis)
  probs = histogram / jnp.maximum(total, 1.0)
  entropies = -jnp.sum(probs * jnp.log(jnp.maximum(probs, 1e-30)), axis=-1)
  pplx = jnp.mean(jnp.exp(entropies))
  return pplx, jnp.log(pplx), histogram


def batch_codebook_coverage(
  codes: Num[Array, '*B G'],
  num_classes: int,
  *,
  paddings: Num[Array, '*B'] | None = None,
  data_parallel_axis: str | None = None,
) -> Float[Array, '']:
  """Returns the share of codes that occur, averaged over groups.

  Args:
    codes: see `batch_pplx_entropy_from_codes`, as all arguments.
    num_classes: the number of codes.
    paddings: 1 at padding, which is not counted.
    data_parallel_axis: a mapped axis to sum the histogram over.
  """
  _, _, histogram = batch_pplx_entropy_from_codes(
    codes,
    num_classes,
    paddings=paddings,
    data_parallel_axis=data_parallel_axis,
  )
  return jnp.mean(histogram > 0, dtype=jnp.float32)
