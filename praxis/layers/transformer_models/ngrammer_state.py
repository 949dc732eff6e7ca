# SPDX-License-Identifier: Apache-2.0
"""What an n-grammer of token ids remembers between decoding steps.

A bigram needs the token before, so the decode state of the model holds its id
and its embedding; at the beginning both are zero.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer

_IDS = 'ngrammer_prefix'
_EMBEDDINGS = 'ngrammer_prefix_emb'


def begin(
  layer: base_layer.BaseLayer,
  ids: Int[Array, 'B T'],
  embedded: Float[Array, 'B T D'],
  start_time_step: Int[Array, ''] | int,
) -> None:
  """Remembers the token before the first step that `layer` will do."""
  for name, rows in ((_IDS, ids), (_EMBEDDINGS, embedded)):
    before = jnp.concatenate([jnp.zeros_like(rows[:, :1]), rows], axis=1)
    row = jax.lax.dynamic_slice_in_dim(before, start_time_step, 1, axis=1)
    layer.update_decode_state(name, row)


def step(
  layer: base_layer.BaseLayer,
  ngrammer: base_layer.BaseLayer,
  ids: Int[Array, 'B L'],
  embedded: Float[Array, 'B L D'],
  segment_pos: Int[Array, 'B L'] | None = None,
) -> Float[Array, 'B L D']:
  """Returns what the n-grammer makes of steps; remembers the last of them."""
  all_ids = jnp.concatenate([layer.get_decode_state(_IDS), ids], axis=1)
  all_embedded = jnp.concatenate(
    [layer.get_decode_state(_EMBEDDINGS).astype(embedded.dtype), embedded],
    axis=1,
  )
  if segment_pos is not None:
    segment_pos = jnp.pad(segment_pos, [(0, 0), (1, 0)])
  layer.update_decode_state(_IDS, ids[:, -1:])
  layer.update_decode_state(_EMBEDDINGS, embedded[:, -1:])
  outputs = ngrammer(
    all_ids,
    all_embedded,
    segment_pos=segment_pos,
    check_time_step_zero=True,
  )
  return outputs[:, 1:]


def transform(
  layer: base_layer.BaseLayer, transform_fn: Callable[[Array, int, int], Array]
) -> None:
  """Replaces what is remembered, x, by transform_fn(x, 0, -1)."""
  for name in (_IDS, _EMBEDDINGS):
    if name in layer.variables.get(base_layer.DECODE_CACHE, {}):
      state = transform_fn(layer.get_decode_state(name), 0, -1)
      layer.update_decode_state(name, state)
