# SPDX-License-Identifier: Apache-2.0
"""Recurrences whose state is a matrix for each head.

A step multiplies the state S by its decay α, adds the outer product of its key
k and a change δ, and reads S with its query q:

    S ← α S + k δᵀ        o = Sᵀ q

The subclasses of Steps differ in the change. `recurrent` computes this step by
step, `chunked` the steps of a chunk at once, and only the states between
chunks one after another.

Shapes: B batch, T steps, M chunks, C steps of a chunk, K heads of queries and
keys, N heads of values, a multiple of K, H dimension of queries and keys, V of
values.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

State = Float[Array, 'B N H V']
_Steps = TypeVar('_Steps', bound='Steps')


class Update(NamedTuple):
  """What a step changes: S ← decay · S + key ⊗ delta."""

  decay: Float[Array, 'B N']
  key: Float[Array, 'B K H']
  delta: Float[Array, 'B N V']

  def apply(self, state: State) -> State:
    """Returns the state after the step."""
    key = repeat_heads(self.key, self.delta.shape[1], axis=1)
    added = key[..., jnp.newaxis] * self.delta[..., jnp.newaxis, :]
    return self.decay[..., jnp.newaxis, jnp.newaxis] * state + added

  def skip(self, is_skipped: Bool[Array, ' B']) -> Update:
    """Returns the update that leaves the state of some examples unchanged."""
    is_skipped = is_skipped[:, jnp.newaxis]
    return Update(
      jnp.where(is_skipped, 1.0, self.decay),
      self.key,
      jnp.where(is_skipped[..., jnp.newaxis], 0.0, self.delta),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps(abc.ABC):
  """The inputs of consecutive steps, in float32."""

  query: Float[Array, '*B T K H']
  key: Float[Array, '*B T K H']
  value: Float[Array, '*B T N V']
  # log α, at most 0.
  log_decay: Float[Array, '*B T N']
  # Whether a step has no earlier ones: the state before it is zero.
  is_start: Bool[Array, '*B T']

  def span(self: _Steps, first: int, end: int | None = None) -> _Steps:
    """Returns the steps from `first` to `end` - 1."""
    return jax.tree.map(lambda x: x[:, first:end], self)

  def zero_state(self) -> State:
    """Returns the state before the first step."""
    batch, _, heads, value_dim = self.value.shape
    return jnp.zeros((batch, heads, self.key.shape[-1], value_dim), jnp.float32)

  def no_update(self) -> Update:
    """Returns the update that changes nothing."""
    batch, _, heads, value_dim = self.value.shape
    return Update(
      jnp.ones((batch, heads)),
      jnp.zeros((batch, *self.key.shape[2:])),
      jnp.zeros((batch, heads, value_dim)),
    )

  def recurrent(
    self, state: State, update: Update
  ) -> tuple[Float[Array, 'B T N V'], State, Update]:
    """Returns the outputs, the last step's state before it, and its update.

    The state after the last step is not computed: the next call computes it
    from the update, so each step reads and writes the state once.

    Args:
      state: that before the step before the first one.
      update: of that step.
    """

    def body(
      carry: tuple[State, Update], step: Steps
    ) -> tuple[tuple[State, Update], Array]:
      state, update = carry
      state = update.apply(state)
      is_start = step.is_start[:, jnp.newaxis, jnp.newaxis, jnp.newaxis]
      state = jnp.where(is_start, 0.0, state)
      update, output = step._advance(state)
      return (state, update), output

    time_major = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), self)
    (state, update), outputs = jax.lax.scan(body, (state, update), time_major)
    return jnp.moveaxis(outputs, 0, 1), state, update

  @abc.abstractmethod
  def _advance(self, state: State) -> tuple[Update, Float[Array, 'B N V']]:
    """Returns the update and the output of one step, without a time axis."""

  @abc.abstractmethod
  def chunked(
    self, state: State, chunk_size: int
  ) -> tuple[Float[Array, 'B T N V'], State]:
    """Returns the outputs, and the state after the last step.

    Args:
      state: that before the first step.
      chunk_size: number of steps of a chunk.
    """

  def chunks(self: _Steps, chunk_size: int) -> _Steps:
    """Returns the steps as [M, B, C, ...], padded with such without effect.

    Args:
      chunk_size: C, or more than T.
    """
    length = self.key.shape[1]
    chunk_size = max(1, min(chunk_size, length))
    padding = -length % chunk_size

    def split(x: Array) -> Array:
      x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
      x = x.reshape(x.shape[0], -1, chunk_size, *x.shape[2:])
      return jnp.moveaxis(x, 1, 0)

    return jax.tree.map(split, self)


class ChunkDecays(NamedTuple):
  """The decays between the steps of a chunk, and from the state before it."""

  # From each step (last) to each later one of its segment; 0 for others.
  pairwise: Float[Array, '*M N C C']
  # From the state to each step; 0 for steps of later segments.
  from_state: Float[Array, '*M N C']

  @classmethod
  def of(
    cls, log_decay: Float[Array, '*M N C'], is_start: Bool[Array, '*M C']
  ) -> ChunkDecays:
    """Returns the decays of the steps of a chunk.

    Args:
      log_decay: see Steps.
      is_start: see Steps.
    """
    # All heads have the same segments. Steps of segment 0 continue the state,
    # those of the last one change it.
    segment = jnp.cumsum(is_start, axis=-1)[..., jnp.newaxis, :]
    sums = _sums(log_decay)
    return cls(
      _pairwise(sums, segment),
      jnp.where(segment == 0, jnp.exp(sum(sums)), 0.0),
    )


def _sums(
  log_decay: Float[Array, '*M N C'],
) -> tuple[Float[Array, '*M N C'], Float[Array, '*M N C']]:
  """Returns two numbers whose sum is that from the first step to each step.

  Their differences keep the digits of small decays after large ones: the first
  is exact, the second small.
  """
  # The exponential of less is 0 in float32.
  log_decay = jnp.maximum(log_decay, -128.0)
  coarse = jnp.round(log_decay * 64) / 64
  return jnp.cumsum(coarse, axis=-1), jnp.cumsum(log_decay - coarse, axis=-1)


def _pairwise(
  sums: tuple[Float[Array, '*M N C'], Float[Array, '*M N C']],
  segment: Int[Array, '*M 1 C'],
) -> Float[Array, '*M N C C']:
  index = jnp.arange(segment.shape[-1])
  is_visible = segment[..., jnp.newaxis] == segment[..., jnp.newaxis, :]
  is_visible &= index[:, jnp.newaxis] >= index
  coarse, rest = (x[..., :, None] - x[..., None, :] for x in sums)
  return jnp.exp(jnp.where(is_visible, coarse + rest, -jnp.inf))


def merge_chunks(
  outputs: Float[Array, 'M B N C V'],
) -> Float[Array, 'B T N V']:
  """Returns the outputs of chunks as those of consecutive steps."""
  outputs = jnp.transpose(outputs, (1, 0, 3, 2, 4))
  return outputs.reshape(outputs.shape[0], -1, *outputs.shape[3:])


def repeat_heads(
  x: Float[Array, '...'], num_heads: int, axis: int
) -> Float[Array, '...']:
  """Returns the heads on an axis, each as often as consecutive ones share it.

  Args:
    x: has heads of queries or keys.
    num_heads: N, that of values.
    axis: of the heads.
  """
  repeats = num_heads // x.shape[axis]
  return x if repeats == 1 else jnp.repeat(x, repeats, axis=axis)
