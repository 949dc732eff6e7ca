# SPDX-License-Identifier: Apache-2.0
"""The one loop of all decoders: a body that fills the next column, repeated.

What the body chooses is up to the algorithm (`sampling`, `beams`,
`flat_beams`). Its state is a NestedMap with at least `step`, the column that
is read next, and `done`, which rows have ended.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis import base_layer
from praxis.decoding import states
from praxis.nested_map import NestedMap

# Stands in logprobs where no token was generated.
NO_LOGPROB = 1.0

# fn(model, ids, segment_pos[, state]) -> logits
ExtendStepFn = Callable[..., Float[Array, 'R V']]
# fn(model, ids, segment_pos, state) -> logits
ExpandedExtendStepFn = Callable[
  [Any, Int[Array, 'R'], Int[Array, 'R'], NestedMap], Float[Array, 'R V']
]
# fn(model, ids, paddings): leaves the states of the prompts.
FPropFn = Callable[[Any, Array, Array], Any]
# fn(model, fn(x, batch_dim, time_dim) -> x)
TransformStateFn = Callable[[Any, states.StateFn], None]
# fn(model, num_suffix_samples, suffix_length)
LazyBroadcastPrefixFn = Callable[[Any, int, int], None]
# fn(model, state) -> state
Body = Callable[[Any, NestedMap], NestedMap]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
  """How a model does steps and keeps states: functions of the bound model."""

  extend_step: ExtendStepFn
  transform_state: TransformStateFn | None = None
  # Shares the states of prompts among samples; None: each has a copy.
  lazy_broadcast_prefix: LazyBroadcastPrefixFn | None = None
  # Reads the prompts; None if the model has.
  fprop: FPropFn | None = None

  def logits(
    self, model: Any, ids: Array, segment_pos: Array, state: NestedMap
  ) -> Float[Array, '... V']:
    """Returns the float32 logits of one step."""
    extend_step = coerce_to_expanded_extend_step_fn(self.extend_step)
    return extend_step(model, ids, segment_pos, state).astype(jnp.float32)

  def transform(self, model: Any, fn: states.StateFn) -> None:
    """Replaces every state of the model, if it has any."""
    if self.transform_state is not None:
      self.transform_state(model, fn)


def coerce_to_expanded_extend_step_fn(
  extend_step_fn: ExtendStepFn,
) -> ExpandedExtendStepFn:
  """Returns it as a function that takes the loop's state, too."""
  if len(inspect.signature(extend_step_fn).parameters) == 4:
    return extend_step_fn
  return lambda model, ids, pos, state: extend_step_fn(model, ids, pos)


def run(
  model: Any,
  body: Body,
  state: NestedMap,
  last: int,
  is_over: Callable[[NestedMap], Bool[Array, '']] | None = None,
) -> NestedMap:
  """Returns the state when step `last` is reached, or all is over.

  Decode states are carried, so that a step writes to them in place.
  """

  def goes_on(model: Any, state: NestedMap) -> Bool[Array, '']:
    del model
    more = state.step < last
    return more if is_over is None else more & ~is_over(state)

  if model.is_initializing():
    return body(model, state)
  return nn.while_loop(
    goes_on,
    body,
    model,
    jax.tree.map(jnp.asarray, state),
    carry_variables=base_layer.DECODE_CACHE,
    broadcast_variables=True,
    split_rngs={base_layer.RANDOM: True},
  )


def all_done(state: NestedMap) -> Bool[Array, '']:
  """Returns whether every row has ended."""
  return jnp.all(state.done)


def run_buckets(
  model: Any,
  steps: Steps,
  body: Body,
  state: NestedMap,
  buckets: Sequence[int],
  is_over: Callable[[NestedMap], Bool[Array, '']] | None = None,
) -> NestedMap:
  """As `run`, with caches that have room for buckets[0] steps, and grow."""
  first = state.step
  for i, bucket in enumerate(buckets):
    if i > 0:
      grown = bucket - buckets[i - 1]
      steps.transform(model, states.pad_state_fn(grown))
    state = run(model, body, state, first + bucket, is_over)
  return state


def column_of(x: Array, column: Int[Array, ''] | int) -> Array:
  """Returns x[:, column]."""
  return jax.lax.dynamic_index_in_dim(x, column, 1, keepdims=False)


def set_column(x: Array, column: Int[Array, ''] | int, values: Array) -> Array:
  """Returns x with `values` as its column."""
  values = values.astype(x.dtype)
  return jax.lax.dynamic_update_index_in_dim(x, values, column, 1)


def as_list(ids: int | Sequence[int]) -> list[int]:
  """Returns one id, or several, as a list."""
  return list(ids) if isinstance(ids, Sequence) else [ids]
