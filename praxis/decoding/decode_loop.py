# SPDX-License-Identifier: Apache-2.0
"""The while loop that all decoding algorithms share.

An algorithm (sampling, beam search, flat beam search) is a body
fn(model, state) -> state that fills one column of its output. The state is a
NestedMap with at least `step`, the column of the tokens read next, and `done`,
the mask of finished rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from praxis import base_layer
from praxis.decoding import model_fns, state_transforms
from praxis.nested_map import NestedMap

# The value of logprobs where no token is generated.
NO_LOGPROB = 1.0

# fn(model, state) -> state
Body = Callable[[Any, NestedMap], NestedMap]
# fn(state) -> whether the loop ends before its last step
StopFn = Callable[[NestedMap], Bool[Array, '']]


def run(
  model: Any,
  body: Body,
  state: NestedMap,
  last_step: int,
  should_stop: StopFn | None = None,
) -> NestedMap:
  """Repeats `body` until `state.step` is `last_step` or `should_stop`.

  The model's decode states are loop carries, so XLA updates them in place.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    body: fn(model, state) -> state; increments `state.step`.
    state: the initial state.
    last_step: the value of `state.step` that ends the loop.
    should_stop: fn(state) that ends the loop early; None: never.

  Returns:
    The final state.
  """

  def keep_going(model: Any, state: NestedMap) -> Bool[Array, '']:
    del model
    in_range = state.step < last_step
    return in_range if should_stop is None else in_range & ~should_stop(state)

  if model.is_initializing():
    return body(model, state)
  return nn.while_loop(
    # Flax annotates bool, but a traced condition is an array.
    cast(Callable[[Any, NestedMap], bool], keep_going),
    body,
    model,
    jax.tree.map(jnp.asarray, state),
    carry_variables=base_layer.DECODE_CACHE,
    broadcast_variables=True,
    split_rngs={base_layer.RANDOM: True},
  )


def run_recording_summaries(
  model: Any,
  fns: model_fns.ModelFns,
  body: Body,
  state: NestedMap,
  buckets: Sequence[int],
) -> NestedMap:
  """Repeats `body` buckets[-1] times, and stacks the summaries of the steps.

  A while loop, as in `run`, drops them, because it does not know the number of
  its steps. It also splits the random streams in another way, so samples do not
  depend on whether the summaries are mutable. The caches grow at once.

  Args:
    model: bound, with a mutable DECODE_CACHE, and with caches that have room
      for buckets[0] steps.
    fns: the functions of the model.
    body: fn(model, state) -> state.
    state: the initial state.
    buckets: ascending numbers of steps.

  Returns:
    The final state.
  """
  if model.is_initializing():
    return body(model, state)
  if len(buckets) > 1:
    added_steps = buckets[-1] - buckets[0]
    fns.transform(model, state_transforms.pad_state_fn(added_steps))
  earlier = model.variables.get(base_layer.SUMMARIES, {})
  loop = nn.scan(
    lambda model, state, _: (body(model, state), None),
    variable_axes={base_layer.SUMMARIES: 0},
    variable_carry=base_layer.DECODE_CACHE,
    variable_broadcast=nn.DenyList(
      (base_layer.SUMMARIES, base_layer.DECODE_CACHE)
    ),
    split_rngs={base_layer.RANDOM: True},
    length=buckets[-1],
  )
  loop = nn.map_variables(
    loop,
    base_layer.SUMMARIES,
    trans_in_fn=lambda summaries: {name: {} for name in summaries},
    trans_out_fn=lambda summaries: {
      name: _merge(earlier, recorded) for name, recorded in summaries.items()
    },
    mutable=True,
  )
  state, _ = loop(model, jax.tree.map(jnp.asarray, state), None)
  return state


def run_buckets(
  model: Any,
  fns: model_fns.ModelFns,
  body: Body,
  state: NestedMap,
  buckets: Sequence[int],
  should_stop: StopFn | None = None,
) -> NestedMap:
  """Runs `body` for buckets[-1] steps, growing the caches bucket by bucket.

  Args:
    model: bound, with caches that have room for buckets[0] steps.
    fns: the functions of the model.
    body: fn(model, state) -> state.
    state: the initial state.
    buckets: ascending numbers of steps.
    should_stop: fn(state) that ends the loop early; None: never.

  Returns:
    The final state.
  """
  first_step = state.step
  for i, bucket in enumerate(buckets):
    if i > 0:
      added_steps = bucket - buckets[i - 1]
      fns.transform(model, state_transforms.pad_state_fn(added_steps))
    state = run(model, body, state, first_step + bucket, should_stop)
  return state


def all_done(state: NestedMap) -> Bool[Array, '']:
  """Returns whether every row is finished."""
  return jnp.all(state.done)


def get_column(x: Array, column: Int[Array, ''] | int) -> Array:
  """Returns x[:, column]."""
  return jax.lax.dynamic_index_in_dim(x, column, 1, keepdims=False)


def set_column(x: Array, column: Int[Array, ''] | int, values: Array) -> Array:
  """Returns x with x[:, column] = values."""
  values = values.astype(x.dtype)
  return jax.lax.dynamic_update_index_in_dim(x, values, column, 1)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the leaves of both trees; those of `new` replace those of `old`."""
  merged = dict(old)
  for name, value in new.items():
    is_branch = isinstance(value, Mapping) and isinstance(
      old.get(name), Mapping
    )
    merged[name] = _merge(old[name], value) if is_branch else value
  return merged
