# SPDX-License-Identifier: Apache-2.0
"""Streaming of generated tokens to the host during the decode loop."""

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
  """Host functions that the decode loop calls, in order."""

  # Receives the tokens of the last steps as numpy arrays; see `send`.
  callback_fn: Callable[[NestedJTensor], None]
  # Number of decode steps between calls.
  interval_steps: int = 1
  # Receives (batch, num_samples) before the first step.
  init_fn: Callable[[int | Sequence[int]], None] | None = None
  # Called after the last step.
  done_fn: Callable[[], None] | None = None


def start(
  callback: StreamingResultCallback | None,
  state: NestedMap,
  shape: tuple[int, int],
) -> NestedMap:
  """Calls init_fn; returns the loop state with a counter of calls.

  Args:
    callback: None: the state is returned unchanged.
    state: the initial state of the decode loop.
    shape: (batch, num_samples) of the results.

  Raises:
    ValueError: interval_steps is not positive.
  """
  if callback is None:
    return state
  if callback.interval_steps < 1:
    raise ValueError(
      f'interval_steps must be >= 1, got {callback.interval_steps}; 1 sends '
      'every step'
    )
  num_calls = jnp.zeros((), jnp.int32)
  init_fn = callback.init_fn
  if init_fn is not None:
    num_calls = _call_host(lambda: init_fn(shape), num_calls)
  return NestedMap(**state, num_calls=num_calls)


def finish(
  callback: StreamingResultCallback | None, state: NestedMap
) -> NestedMap:
  """Calls done_fn; returns the loop state without the counter of calls."""
  if callback is None:
    return state
  state = NestedMap(state)
  num_calls = state.pop('num_calls')
  if callback.done_fn is not None:
    _call_host(callback.done_fn, num_calls)
  return state


def send(
  callback: StreamingResultCallback, state: NestedMap, num_samples: int
) -> Int[Array, '']:
  """Calls callback_fn with the columns since the last call, at an interval.

  It receives output_ids and logprobs [B, N, interval_steps], decode_lengths,
  scores (the sum of these logprobs, or prefix_scores of the loop state) and
  done [B, N], prefix_lengths [B], and on request num_per_token_logprobs [B, N],
  top_candidate_ids and top_candidate_logprobs [B, N, interval_steps, 5].

  Returns:
    The number of calls so far.
  """
  interval = callback.interval_steps
  num_steps = state.step - state.start_step
  first_step = (num_steps - 1) // interval * interval
  first_column = state.start_step + 1 + first_step
  is_last = state.step == state.output_ids.shape[1] - 1
  is_due = (num_steps % interval == 0) | jnp.all(state.done) | is_last

  def emit(state: NestedMap) -> Int[Array, '']:
    ids = _columns(state.output_ids, first_column, interval, 0)
    logprobs = _columns(state.logprobs, first_column, interval, 1)
    result = NestedMap(output_ids=ids, logprobs=logprobs, done=state.done)
    # Candidates are stored by decode step, not by column of the text.
    fills = {'top_candidate_ids': 0, 'top_candidate_logprobs': 1}
    for name, fill in fills.items():
      if name in state:
        result[name] = _columns(state[name], first_step, interval, fill)
    if 'num_per_token_logprobs' in state:
      result.num_per_token_logprobs = state.num_per_token_logprobs
    result.decode_lengths = jnp.full_like(state.decode_lengths, interval)
    result.scores = state.get(
      'prefix_scores', jnp.sum(jnp.minimum(logprobs, 0.0), axis=-1)
    )
    result = jax.tree.map(
      lambda x: x.reshape(-1, num_samples, *x.shape[1:]), result
    )
    result.prefix_lengths = jnp.zeros(result.done.shape[:1], jnp.int32)
    return _call_host(callback.callback_fn, state.num_calls, result)

  return jax.lax.cond(is_due, emit, lambda state: state.num_calls, state)


def _call_host(
  fn: Callable[..., None], num_calls: Int[Array, ''], *args: NestedJTensor
) -> Int[Array, '']:
  """Calls a host function after `num_calls` others; returns num_calls + 1.

  The data dependence on the previous call's result orders the calls on any
  number of devices; `ordered=True` supports a single device only.
  """

  def call(num_calls: np.ndarray, *args: Any) -> np.ndarray:
    fn(*jax.tree.map(np.asarray, args))
    return np.asarray(num_calls) + np.int32(1)

  result = jax.ShapeDtypeStruct((), jnp.int32)
  return io_callback(call, result, num_calls, *args)


def _columns(x: Array, first: Int[Array, ''], count: int, fill: int) -> Array:
  """Returns x[:, first : first + count], padded with `fill`."""
  widths = [(0, 0)] * x.ndim
  widths[1] = (0, count)
  padded = jnp.pad(x, widths, constant_values=fill)
  return jax.lax.dynamic_slice_in_dim(padded, first, count, axis=1)
