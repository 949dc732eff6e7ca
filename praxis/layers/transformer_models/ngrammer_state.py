# SPDX-License-Identifier: Apache-2.0
"""The decode state of a model's n-grammer: the previous token.

A bigram needs the id and the embedding of the previous token; both are zero
before the first token.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer

_IDS = 'ngrammer_prefix'
_EMBEDDINGS = 'ngrammer_prefix_emb'


def init_state(
  model: base_layer.BaseLayer,
  ids: Int[Array, 'B T'],
  embeddings: Float[Array, 'B T D'],
  start_time_step: Int[Array, ''] | int,
) -> None:
  """Stores the token before the first decoding step.

  Args:
    model: holds the decode state.
    ids: token ids of the prompt.
    embeddings: their embeddings.
    start_time_step: index of the first decoding step.
  """
  for name, values in ((_IDS, ids), (_EMBEDDINGS, embeddings)):
    shifted = jnp.concatenate([jnp.zeros_like(values[:, :1]), values], axis=1)
    previous = jax.lax.dynamic_slice_in_dim(shifted, start_time_step, 1, axis=1)
    model.update_decode_state(name, previous)


def extend_step(
  model: base_layer.BaseLayer,
  ngrammer: base_layer.BaseLayer,
  ids: Int[Array, 'B L'],
  embeddings: Float[Array, 'B L D'],
  segment_pos: Int[Array, 'B L'] | None = None,
) -> Float[Array, 'B L D']:
  """Returns the n-grammer's output for L steps, and stores the last token.

  Args:
    model: holds the decode state.
    ngrammer: augments the embeddings.
    ids: token ids of the steps.
    embeddings: their embeddings.
    segment_pos: positions in the segments, for n-grammers that use them.
  """
  previous_embeddings = model.get_decode_state(_EMBEDDINGS)
  all_ids = jnp.concatenate([model.get_decode_state(_IDS), ids], axis=1)
  all_embeddings = jnp.concatenate(
    [previous_embeddings.astype(embeddings.dtype), embeddings], axis=1
  )
  if segment_pos is not None:
    segment_pos = jnp.pad(segment_pos, [(0, 0), (1, 0)])
  model.update_decode_state(_IDS, ids[:, -1:])
  model.update_decode_state(_EMBEDDINGS, embeddings[:, -1:])
  outputs = ngrammer(
    all_ids,
    all_embeddings,
    segment_pos=segment_pos,
    check_time_step_zero=True,
  )
  return outputs[:, 1:]


def transform_state(
  model: base_layer.BaseLayer, transform_fn: base_layer.DecodeStateTransformFn
) -> None:
  """Replaces each stored tensor x by transform_fn(x, 0, -1)."""
  for name in (_IDS, _EMBEDDINGS):
    if name in model.variables.get(base_layer.DECODE_CACHE, {}):
      state = transform_fn(model.get_decode_state(name), 0, -1)
      model.update_decode_state(name, state)
