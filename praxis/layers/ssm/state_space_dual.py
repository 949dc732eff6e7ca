# SPDX-License-Identifier: Apache-2.0
"""State space duality: a linear state space with a scalar decay for each head.

With a decay α, input v, input matrix k and output matrix q (A, x, B and C of
the paper), all but v shared by consecutive heads but for the decay:

    S ← α S + k vᵀ        o = Sᵀ q + u

The outputs of a chunk are a product with its lower triangular matrix of q kᵀ
and decays, as in attention, and what its steps read of the state before it.

Shapes: as in matrix_states.py, R heads of values for each of keys.

References: Transformers are SSMs (Mamba-2), arXiv:2405.21060, section 6.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from praxis.layers.ssm import matrix_states
from praxis.layers.ssm.matrix_states import State, Update


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps(matrix_states.Steps):
  """The inputs of consecutive steps, in float32."""

  # What outputs have in addition, u.
  direct: Float[Array, '*B T N V']

  @override
  def _advance(self, state: State) -> tuple[Update, Float[Array, 'B N V']]:
    decay = jnp.exp(self.log_decay)
    num_heads = decay.shape[1]
    query = matrix_states.repeat_heads(self.query, num_heads, axis=1)
    read = decay[..., None] * jnp.einsum('bnhv,bnh->bnv', state, query)
    overlap = jnp.sum(self.query * self.key, axis=-1, keepdims=True)
    overlap = matrix_states.repeat_heads(overlap, num_heads, axis=1)
    outputs = read + overlap * self.value + self.direct
    return Update(decay, self.key, self.value), outputs

  @override
  def chunked(
    self, state: State, chunk_size: int
  ) -> tuple[Float[Array, 'B T N V'], State]:
    length = self.key.shape[1]
    # The matrices of a chunk are computed again in the backward pass.
    body = jax.checkpoint(_chunk_outputs)
    state, outputs = jax.lax.scan(body, state, self.chunks(chunk_size))
    # [M, B, C, N, V]
    outputs = jnp.moveaxis(outputs, 0, 1)
    outputs = outputs.reshape(outputs.shape[0], -1, *outputs.shape[3:])
    return outputs[:, :length], state


def _chunk_outputs(
  state: State, steps: Steps
) -> tuple[State, Float[Array, 'B C N V']]:
  """Returns the state after a chunk, and its outputs.

  Args:
    state: that before the chunk.
    steps: those of the chunk.
  """
  batch, num_steps, num_key_heads, _ = steps.key.shape
  # Heads of values as [K, R].
  value = steps.value.reshape(
    batch, num_steps, num_key_heads, -1, state.shape[-1]
  )
  grouped = state.reshape(batch, num_key_heads, -1, *state.shape[2:])
  pairwise, from_state = (
    x.reshape(batch, num_key_heads, -1, *x.shape[2:])
    for x in matrix_states.ChunkDecays.of(steps)
  )
  scores = jnp.einsum('bckh,bskh->bkcs', steps.query, steps.key)
  probs = scores[:, :, jnp.newaxis] * pairwise
  outputs = jnp.einsum('bkrcs,bskrv->bckrv', probs, value)
  reads = jnp.einsum('bckh,bkrhv->bckrv', steps.query, grouped)
  # [B, C, K, R, 1]
  factor = jnp.moveaxis(from_state, -1, 1)[..., jnp.newaxis]
  outputs = (outputs + factor * reads).reshape(steps.value.shape)
  to_end = jnp.moveaxis(pairwise[..., -1, :], -1, 1)[..., jnp.newaxis]
  added = jnp.einsum('bskh,bskrv->bkrhv', steps.key, to_end * value)
  final_decay = from_state[..., -1, jnp.newaxis, jnp.newaxis]
  state = (final_decay * grouped + added).reshape(state.shape)
  return state, outputs + steps.direct
