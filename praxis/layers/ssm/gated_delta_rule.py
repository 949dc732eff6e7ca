# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule: a state that returns values for keys.

With a decay α and a strength β, a step replaces what the state S returns for
its key k by its value v, and reads it with its query q:

    S ← α S + k (β (v − α Sᵀ k))ᵀ        o = Sᵀ q

The changes β (v − α Sᵀ k) of a chunk of C steps solve a triangular system of C
equations (the WY representation).

Shapes: as in matrix_states.py, M chunks, with as many heads of keys as of
values.

References: Gated Delta Networks, arXiv:2412.06464, section 3.3.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

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

  # β.
  strength: Float[Array, '*B T N']

  @override
  def _advance(self, state: State) -> tuple[Update, Float[Array, 'B N V']]:
    decay = jnp.exp(self.log_decay)
    read = lambda x: decay[..., None] * jnp.einsum('bnhv,bnh->bnv', state, x)
    delta = self.strength[..., None] * (self.value - read(self.key))
    overlap = jnp.sum(self.query * self.key, axis=-1, keepdims=True)
    outputs = read(self.query) + overlap * delta
    return Update(decay, self.key, delta), outputs

  @override
  def chunked(
    self, state: State, chunk_size: int
  ) -> tuple[Float[Array, 'B T N V'], State]:
    length = self.key.shape[1]
    chunks = _Chunks.create(self.chunks(chunk_size))

    def body(state: State, chunk: _Chunks) -> tuple[State, Array]:
      deltas = chunk.deltas - chunk.state_keys @ state
      outputs = chunk.state_queries @ state + chunk.probs @ deltas
      added = jnp.swapaxes(chunk.final_keys, -1, -2) @ deltas
      return chunk.final_decay * state + added, outputs

    state, outputs = jax.lax.scan(body, state, chunks)
    return matrix_states.merge_chunks(outputs)[:, :length], state


class _Chunks(NamedTuple):
  """The terms of a chunk's equations that do not depend on the state S.

  S is the state before the chunk. With D = deltas − state_keys · S the outputs
  are state_queries · S + probs · D, and the state after the chunk is
  final_decay · S + final_keysᵀ · D.
  """

  deltas: Float[Array, 'M B N C V']
  state_keys: Float[Array, 'M B N C H']
  state_queries: Float[Array, 'M B N C H']
  probs: Float[Array, 'M B N C C']
  final_keys: Float[Array, 'M B N C H']
  final_decay: Float[Array, 'M B N 1 1']

  @classmethod
  def create(cls, steps: Steps) -> _Chunks:
    """Solves the triangular systems of all chunks, [M, B, C, N, ...]."""
    query, key, value = (
      jnp.swapaxes(x, -2, -3) for x in (steps.query, steps.key, steps.value)
    )
    strength = jnp.swapaxes(steps.strength, -1, -2)[..., jnp.newaxis]
    decays = matrix_states.ChunkDecays.of(
      jnp.swapaxes(steps.log_decay, -1, -2), steps.is_start
    )
    from_state = decays.from_state[..., jnp.newaxis]
    swapped = jnp.swapaxes(key, -1, -2)
    solved = _product(
      _unit_lower_inverse(strength * (key @ swapped) * decays.pairwise),
      jnp.concatenate([strength * value, strength * from_state * key], axis=-1),
    )
    value_dim = value.shape[-1]
    return cls(
      deltas=solved[..., :value_dim],
      state_keys=solved[..., value_dim:],
      state_queries=query * from_state,
      probs=(query @ swapped) * decays.pairwise,
      final_keys=key * decays.pairwise[..., -1, :, jnp.newaxis],
      final_decay=from_state[..., -1:, :],
    )


# Not `triangular_solve`: solves of batches that run at the same time on CPUs
# with few cores wait for each other's threads (jaxlib 0.10.2).
@jax.custom_jvp
def _unit_lower_inverse(
  matrix: Float[Array, '*B C C'],
) -> Float[Array, '*B C C']:
  """Returns the inverse of I + L for the part L below the diagonal.

  The inverses of diagonal blocks double their size in each step: in the inverse
  of two of them the block below the diagonal is -B⁻¹ L A⁻¹.
  """
  size = matrix.shape[-1]
  index = jnp.arange(size)
  inverse = jnp.broadcast_to(jnp.eye(size, dtype=matrix.dtype), matrix.shape)
  block = 1
  while block < size:
    number = index // block
    is_below = number[:, jnp.newaxis] > number
    is_below &= number[:, jnp.newaxis] // 2 == number // 2
    below = jnp.where(is_below, matrix, 0.0)
    inverse = inverse - _product(_product(inverse, below), inverse)
    block *= 2
  return inverse


@_unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(
  primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
  inverse = _unit_lower_inverse(*primals)
  below = jnp.tril(tangents[0], -1)
  return inverse, -_product(_product(inverse, below), inverse)


def _product(x: Array, y: Array) -> Array:
  """Returns a product of float32 numbers, which TPUs would round."""
  return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
