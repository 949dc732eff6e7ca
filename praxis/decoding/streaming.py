# SPDX-License-Identifier: Apache-2.0
"""Sends results to the host while the loop goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Int

from praxis.nested_map import NestedMap
from praxis.pytypes import NestedJTensor


@dataclasses.dataclass(frozen=True)
class StreamingResultCallback:
  """Functions of the host that decoding calls, in order."""

  # Gets the tokens of the last steps, as numpy arrays; see `send`.
  callback_fn: Callable[[NestedJTensor], None]
  # After how many steps it is called again.
  interval_steps: int = 1
  # Gets (batch, num_samples) before the first step.
  init_fn: Callable[[int | Sequence[int]], None] | None = None
  # Is called after the last step.
  done_fn: Callable[[], None] | None = None


def start(
  callback: StreamingResultCallback | None, state: NestedMap, num_samples: int
) -> NestedMap:
  """Calls init_fn; returns the state of a loop that counts the calls."""
  if callback is None:
    return state
  if callback.interval_steps < 1:
    raise ValueError(
      f'interval_steps must be >= 1, got {callback.interval_steps}; 1 sends '
      'every step'
    )
  count = jnp.zeros((), jnp.int32)
  if callback.init_fn is not None:
    shape = state.done.shape[0] // num_samples, num_samples
    count = _call(lambda: callback.init_fn(shape), count)
  return NestedMap(**state, num_calls=count)


def finish(
  callback: StreamingResultCallback | None, state: NestedMap
) -> NestedMap:
  """Calls done_fn; returns the state as it is without streaming."""
  if callback is None:
    return state
  state = NestedMap(state)
  count = state.pop('num_calls')
  if callback.done_fn is not None:
    _call(callback.done_fn, count)
  return state


def send(
  callback: StreamingResultCallback, state: NestedMap, num_samples: int
) -> Int[Array, '']:
  """Calls callback_fn, if it is time to, with the columns since the last call.

  They come as output_ids, logprobs and, if asked for, top_candidate_ids and
  top_candidate_logprobs, [B, N, interval_steps, ...], with decode_lengths,
  scores (the sum of those log-probs, or prefix_scores of the loop's state) and
  done, all [B, N], and prefix_lengths [B].

  Returns:
    The number of calls that there were.
  """
  interval = callback.interval_steps
  done_steps = state.step - state.start_step
  first = state.start_step + 1 + (done_steps - 1) // interval * interval
  is_time = (done_steps % interval == 0) | jnp.all(state.done)

  def emit(state: NestedMap) -> Int[Array, '']:
    ids = _columns(state.output_ids, first, interval, 0)
    logprobs = _columns(state.logprobs, first, interval, 1)
    sent = NestedMap(output_ids=ids, logprobs=logprobs, done=state.done)
    blanks = {'top_candidate_ids': 0, 'top_candidate_logprobs': 1}
    for name, blank in blanks.items():
      if name in state:
        sent[name] = _columns(state[name], first, interval, blank)
    sent.decode_lengths = jnp.full_like(state.decode_lengths, interval)
    sent.scores = state.get(
      'prefix_scores', jnp.sum(jnp.minimum(logprobs, 0.0), axis=-1)
    )
    sent = jax.tree.map(
      lambda x: x.reshape(-1, num_samples, *x.shape[1:]), sent
    )
    sent.prefix_lengths = jnp.zeros(sent.done.shape[:1], jnp.int32)
    return _call(callback.callback_fn, state.num_calls, sent)

  return jax.lax.cond(is_time, emit, lambda state: state.num_calls, state)


def _call(
  fn: Callable[..., None], count: Int[Array, ''], *args: NestedJTensor
) -> Int[Array, '']:
  """Calls a function of the host after the first `count`; returns count + 1.

  Each call needs what the one before it returned. That orders them on any
  number of devices, where `ordered=True` knows one only.
  """

  def call(count: Any, *args: Any) -> np.ndarray:
    fn(*jax.tree.map(np.asarray, args))
    return np.asarray(count) + np.int32(1)

  result = jax.ShapeDtypeStruct((), jnp.int32)
  return io_callback(call, result, count, *args)


def _columns(x: Any, first: jax.Array, count: int, blank: int) -> jax.Array:
  widths = [(0, 0)] * x.ndim
  widths[1] = (0, count)
  padded = jnp.pad(x, widths, constant_values=blank)
  return jax.lax.dynamic_slice_in_dim(padded, first, count, axis=1)
