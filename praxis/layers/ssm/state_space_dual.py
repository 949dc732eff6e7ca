# SPDX-License-Identifier: Apache-2.0
"""State space duality: a linear state space with a scalar decay for each head.

With a decay α, input v, input matrix k and output matrix q (A, x, B and C of
the paper), all but v shared by consecutive heads but for the decay:

    S ← α S + k vᵀ        o = Sᵀ q + u

The outputs of a chunk are a product with its lower triangular matrix of q kᵀ
and decays, as in attention, and what its steps read of the state before it.
Only these states are computed one after another.

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
    # The matrices of chunks are computed again in the backward pass.
    reads, state = jax.checkpoint(_reads)(self.chunks(chunk_size), state)
    return matrix_states.merge_chunks(reads)[:, :length] + self.direct, state


def _reads(
  steps: Steps, state: State
) -> tuple[Float[Array, 'M B N C V'], State]:
  """Returns what steps read from states, and the state after the last chunk.

  Args:
    steps: chunks [M, B, C, ...].
    state: that before the first chunk.
  """
  query, key, value = (
    jnp.swapaxes(x, -2, -3) for x in (steps.query, steps.key, steps.value)
  )
  num_key_heads, num_heads = key.shape[2], value.shape[2]

  def by_key_head(x: Float[Array, 'M B N ...']) -> Float[Array, 'M B K R ...']:
    heads = num_key_heads, num_heads // num_key_heads
    return x.reshape(*x.shape[:2], *heads, *x.shape[3:])

  decays = matrix_states.ChunkDecays.of(
    jnp.swapaxes(steps.log_decay, -1, -2), steps.is_start
  )
  pairwise = by_key_head(decays.pairwise)
  value, from_state = by_key_head(value), by_key_head(decays.from_state)
  scores = jnp.einsum('mbkch,mbksh->mbkcs', query, key)
  reads = (scores[:, :, :, jnp.newaxis] * pairwise) @ value
  to_end = pairwise[..., -1, :, jnp.newaxis] * value
  added = jnp.einsum('mbksh,mbkrsv->mbkrhv', key, to_end)

  def body(state: State, chunk: tuple[Array, Array]) -> tuple[State, State]:
    decay, added = chunk
    return decay[..., jnp.newaxis, jnp.newaxis] * state + added, state

  final_decay = decays.from_state[..., -1]
  state, before = jax.lax.scan(
    body, state, (final_decay, added.reshape(-1, *state.shape))
  )
  of_states = jnp.einsum('mbkch,mbkrhv->mbkrcv', query, by_key_head(before))
  reads += from_state[..., jnp.newaxis] * of_states
  return reads.reshape(*decays.from_state.shape, value.shape[-1]), state
