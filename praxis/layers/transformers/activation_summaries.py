# SPDX-License-Identifier: Apache-2.0
"""Summaries of the activations of transformer layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.layers import stats


def add_verbose_summary(
  layer: base_layer.BaseLayer, name: str, value: Callable[[], Array]
) -> None:
  """Adds a summary that is written at verbosity 4 and above only."""
  layer.add_summary(name, value, verbosity=4)


def add_input_statistics(
  layer: base_layer.BaseLayer,
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None,
) -> None:
  """Adds mean, standard deviation and maximum of the unpadded inputs."""
  if paddings is not None:
    paddings = paddings[..., jnp.newaxis]

  def statistic(key: str) -> Array:
    return stats.compute_stats(inputs, paddings)[key]

  for name, key in (('mean', 'mean_v'), ('std', 'std_v'), ('abs_max', 'max_v')):
    layer.add_summary(
      f'xformer_input_{name}', functools.partial(statistic, key), verbosity=3
    )


def rms(
  x: Float[Array, '*B D'], paddings: Num[Array, '*B'] | None = None
) -> Float[Array, '']:
  """Returns the root mean square; padding counts as zeros."""
  if paddings is not None:
    x = x * (1 - paddings).astype(x.dtype)[..., jnp.newaxis]
  return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def cosine(
  x: Float[Array, '*B D'], y: Float[Array, '*B D']
) -> Float[Array, '']:
  """Returns the mean cosine similarity; 0 for pairs with a zero vector."""
  x, y = x.astype(jnp.float32), y.astype(jnp.float32)
  squares = jnp.sum(x * x, axis=-1) * jnp.sum(y * y, axis=-1)
  inverse_norm = jax.lax.rsqrt(jnp.where(squares > 0, squares, 1.0))
  return jnp.mean(jnp.sum(x * y, axis=-1) * inverse_norm)
