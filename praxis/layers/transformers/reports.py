# SPDX-License-Identifier: Apache-2.0
"""Summaries of what flows through transformer layers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.layers import stats


def report(
  layer: base_layer.BaseLayer, name: str, value: Callable[[], Array]
) -> None:
  """Adds a summary for the curious, of verbosity 4."""
  layer.add_summary(name, value, verbosity=4)


def report_inputs(
  layer: base_layer.BaseLayer,
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None,
) -> None:
  """Adds summaries of what is not padding: mean, deviation and largest size."""
  if paddings is not None:
    paddings = paddings[..., jnp.newaxis]

  def report_one(name: str, of: str) -> None:
    value = lambda: stats.compute_stats(inputs, paddings)[of]
    layer.add_summary(f'xformer_input_{name}', value, verbosity=3)

  report_one('mean', 'mean_v')
  report_one('std', 'std_v')
  report_one('abs_max', 'max_v')


def rms(x: Float[Array, '...']) -> Float[Array, '']:
  """Returns the root of the mean square."""
  return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def cosine(x: Float[Array, '... D'], y: Float[Array, '... D']) -> Array:
  """Returns the mean cosine between vectors; with one that is 0, 0."""
  x, y = x.astype(jnp.float32), y.astype(jnp.float32)
  squares = jnp.sum(x * x, axis=-1) * jnp.sum(y * y, axis=-1)
  inverse = jax.lax.rsqrt(jnp.where(squares > 0, squares, 1.0))
  return jnp.mean(jnp.sum(x * y, axis=-1) * inverse)
