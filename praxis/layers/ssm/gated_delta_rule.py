# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule: a matrix as the state of each head.

With a decay α and a strength β, a step replaces what the state S returns for
its key k by its value v, and reads it with its query q:

    S ← α S + k (β (v − α Sᵀ k))ᵀ        o = Sᵀ q

`recurrent` computes this step by step. `chunked` computes C steps at once, and
only the states between these chunks: the updates β (v − α Sᵀ k) of a chunk
solve a triangular system of C equations (the WY representation).

Shapes: B batch, T steps, N heads, H dimension of queries and keys, V of values.

References: Gated Delta Networks, arXiv:2412.06464, section 3.3.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

State = Float[Array, 'B N H V']


class Steps(NamedTuple):
  """The inputs of consecutive steps, in float32."""

  query: Float[Array, 'B T N H']
  key: Float[Array, 'B T N H']
  value: Float[Array, 'B T N V']
  # log α, at most 0.
  log_decay: Float[Array, 'B T N']
  # β.
  strength: Float[Array, 'B T N']
  # Whether a step has no earlier ones: the state before it is zero.
  is_start: Bool[Array, 'B T']

  def span(self, first: int, end: int | None = None) -> Steps:
    """Returns the steps from `first` to `end` - 1."""
    return Steps(*(x[:, first:end] for x in self))


class Update(NamedTuple):
  """What a step changes: S ← decay · S + key ⊗ delta."""

  decay: Float[Array, 'B N']
  key: Float[Array, 'B N H']
  delta: Float[Array, 'B N V']

  def apply(self, state: State) -> State:
    """Returns the state after the step."""
    added = self.key[..., jnp.newaxis] * self.delta[..., jnp.newaxis, :]
    return self.decay[..., jnp.newaxis, jnp.newaxis] * state + added

  def skip(self, is_skipped: Bool[Array, ' B']) -> Update:
    """Returns the update that leaves the state of some examples unchanged."""
    is_skipped = is_skipped[:, jnp.newaxis]
    return Update(
      jnp.where(is_skipped, 1.0, self.decay),
      self.key,
      jnp.where(is_skipped[..., jnp.newaxis], 0.0, self.delta),
    )


def zero_state(steps: Steps) -> State:
  """Returns the state before the first of some steps."""
  batch, _, heads, dim = steps.key.shape
  return jnp.zeros((batch, heads, dim, steps.value.shape[-1]), jnp.float32)


def no_update(steps: Steps) -> Update:
  """Returns the update that changes nothing."""
  batch, _, heads, dim = steps.key.shape
  return Update(
    jnp.ones((batch, heads)),
    jnp.zeros((batch, heads, dim)),
    jnp.zeros((batch, heads, steps.value.shape[-1])),
  )


def recurrent(
  steps: Steps, state: State, update: Update
) -> tuple[Float[Array, 'B T N V'], State, Update]:
  """Returns the outputs of steps, the last one's state before it, and update.

  The state after the last step is not computed: the next call computes it from
  the update, so each step reads and writes the state once.

  Args:
    steps: the steps.
    state: that before the step before the first one.
    update: of that step.
  """

  def body(
    carry: tuple[State, Update], step: Steps
  ) -> tuple[tuple[State, Update], Array]:
    state, update = carry
    state = update.apply(state)
    state = jnp.where(_to_state(step.is_start), 0.0, state)
    update, output = _step(state, step)
    return (state, update), output

  time_major = Steps(*(jnp.moveaxis(x, 1, 0) for x in steps))
  (state, update), outputs = jax.lax.scan(body, (state, update), time_major)
  return jnp.moveaxis(outputs, 0, 1), state, update


def _step(state: State, step: Steps) -> tuple[Update, Float[Array, 'B N V']]:
  """Returns the update and the output of one step, without a time axis."""
  decay = jnp.exp(step.log_decay)
  read = lambda x: decay[..., None] * jnp.einsum('bnhv,bnh->bnv', state, x)
  delta = step.strength[..., None] * (step.value - read(step.key))
  overlap = jnp.sum(step.query * step.key, axis=-1, keepdims=True)
  return Update(decay, step.key, delta), read(step.query) + overlap * delta


def chunked(
  steps: Steps, state: State, chunk_size: int
) -> tuple[Float[Array, 'B T N V'], State]:
  """Returns the outputs of steps, and the state after the last one.

  Args:
    steps: the steps.
    state: that before the first step.
    chunk_size: number of steps of a chunk.
  """
  length = steps.key.shape[1]
  chunks = _Chunks.create(_split(steps, chunk_size))

  def body(state: State, chunk: _Chunks) -> tuple[State, Array]:
    deltas = chunk.deltas - chunk.state_keys @ state
    outputs = chunk.state_queries @ state + chunk.probs @ deltas
    added = jnp.swapaxes(chunk.final_keys, -1, -2) @ deltas
    return chunk.final_decay * state + added, outputs

  state, outputs = jax.lax.scan(body, state, chunks)
  # [chunks, B, N, C, V]
  outputs = jnp.transpose(outputs, (1, 0, 3, 2, 4))
  outputs = outputs.reshape(outputs.shape[0], -1, *outputs.shape[3:])
  return outputs[:, :length], state


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
    """Solves the triangular systems of all chunks, [M, B, N, C, ...]."""
    query, key, value, log_decay, strength, is_start = steps
    strength = strength[..., jnp.newaxis]
    # Steps of segment 0 continue the state, those of the last one change it.
    segment = jnp.cumsum(is_start, axis=-1)
    decays = _pairwise_decays(log_decay, segment)
    from_state = jnp.where(
      segment == 0, jnp.exp(jnp.cumsum(log_decay, axis=-1)), 0.0
    )[..., jnp.newaxis]
    swapped = jnp.swapaxes(key, -1, -2)
    solved = jax.lax.linalg.triangular_solve(
      strength * (key @ swapped) * decays,
      jnp.concatenate([strength * value, strength * from_state * key], axis=-1),
      left_side=True,
      lower=True,
      unit_diagonal=True,
    )
    value_dim = value.shape[-1]
    return cls(
      deltas=solved[..., :value_dim],
      state_keys=solved[..., value_dim:],
      state_queries=query * from_state,
      probs=(query @ swapped) * decays,
      final_keys=key * decays[..., -1, :, jnp.newaxis],
      final_decay=from_state[..., -1:, :],
    )


def _pairwise_decays(
  log_decay: Float[Array, 'M B N C'], segment: Array
) -> Float[Array, 'M B N C C']:
  """Returns the decay from each step to each later one of its segment."""
  index = jnp.arange(log_decay.shape[-1])
  row, column = index[:, jnp.newaxis], index
  is_visible = segment[..., jnp.newaxis] == segment[..., jnp.newaxis, :]
  # Sums from each column on: differences of sums from the first step on would
  # lose the digits of small decays after large ones.
  terms = jnp.where(row > column, log_decay[..., jnp.newaxis], 0.0)
  sums = jnp.cumsum(terms, axis=-2)
  return jnp.where(is_visible & (row >= column), jnp.exp(sums), 0.0)


def _split(steps: Steps, chunk_size: int) -> Steps:
  """Returns the steps as [M, B, N, C, ...], padded with such without effect."""
  length = steps.key.shape[1]
  padding = -length % chunk_size

  def split(x: Array) -> Array:
    x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
    x = x.reshape(x.shape[0], -1, chunk_size, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  parts = [jnp.moveaxis(split(x), 3, 2) for x in steps[:-1]]
  # All heads have the same segments.
  parts.append(split(steps.is_start)[:, :, jnp.newaxis])
  return Steps(*parts)


def _to_state(x: Bool[Array, ' B']) -> Bool[Array, 'B 1 1 1']:
  return x[:, jnp.newaxis, jnp.newaxis, jnp.newaxis]
