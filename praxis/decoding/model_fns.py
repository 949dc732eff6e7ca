# SPDX-License-Identifier: Apache-2.0
"""The functions of a model that decoding algorithms call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num
from typing_extensions import TypeIs

from praxis.decoding import state_transforms
from praxis.nested_map import NestedMap


@runtime_checkable
class ExtendStepFn(Protocol):
  """Runs one decode step of a bound model."""

  def __call__(
    self,
    model: Any,
    ids: Int[Array, '*R'],
    segment_pos: Int[Array, '*R'] | None,
    /,
  ) -> Num[Array, '*R V']:
    """Returns the logits of the next token."""


@runtime_checkable
class ExpandedExtendStepFn(Protocol):
  """Runs one decode step that also reads the state of the decode loop."""

  def __call__(
    self,
    model: Any,
    ids: Int[Array, '*R'],
    segment_pos: Int[Array, '*R'] | None,
    decode_loop_state: NestedMap,
    /,
  ) -> Num[Array, '*R V']:
    """Returns the logits of the next token."""


# fn(model, ids, paddings): prefills the model's decode states.
FPropFn = Callable[[Any, Array, Array], Any]
# fn(model, transform): replaces every decode state x by
# transform(x, batch_dim, time_dim).
TransformStateFn = Callable[[Any, state_transforms.StateTransform], None]
# fn(model, num_suffix_samples, suffix_length): makes the decode states a prefix
# shared by `num_suffix_samples` samples.
LazyBroadcastPrefixFn = Callable[[Any, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFns:
  """The functions of a bound model that a decoding algorithm calls."""

  extend_step: ExpandedExtendStepFn
  # None: the model has no decode states.
  transform_state: TransformStateFn | None = None
  # None: each sample gets a copy of the prompt's decode states.
  lazy_broadcast_prefix: LazyBroadcastPrefixFn | None = None
  # None: the prompts are prefilled already.
  fprop: FPropFn | None = None

  def logits(
    self, model: Any, ids: Array, segment_pos: Array, state: NestedMap
  ) -> Float[Array, '... V']:
    """Returns the float32 logits of one decode step.

    Args:
      model: bound, with a mutable DECODE_CACHE.
      ids: the tokens to read.
      segment_pos: their positions.
      state: the state of the decode loop.
    """
    logits = self.extend_step(model, ids, segment_pos, state)
    return logits.astype(jnp.float32)

  def transform(
    self, model: Any, transform: state_transforms.StateTransform
  ) -> None:
    """Applies `transform` to every decode state of the model."""
    if self.transform_state is not None:
      self.transform_state(model, transform)


def ignore_loop_state(extend_step_fn: ExtendStepFn) -> ExpandedExtendStepFn:
  """Returns `extend_step_fn` with an additional argument that it ignores."""

  def expanded(
    model: Any,
    ids: Array,
    segment_pos: Array | None,
    decode_loop_state: NestedMap,
  ) -> Array:
    del decode_loop_state
    return extend_step_fn(model, ids, segment_pos)

  return expanded


def coerce_to_expanded_extend_step_fn(
  extend_step_fn: ExtendStepFn | ExpandedExtendStepFn,
) -> ExpandedExtendStepFn:
  """Returns an ExpandedExtendStepFn for a function of either protocol.

  Only the public functions that accept both protocols call this; `ModelFns`
  takes the expanded one.
  """
  if _takes_loop_state(extend_step_fn):
    return extend_step_fn
  return ignore_loop_state(extend_step_fn)


def _takes_loop_state(
  extend_step_fn: ExtendStepFn | ExpandedExtendStepFn,
) -> TypeIs[ExpandedExtendStepFn]:
  model = ids = segment_pos = decode_loop_state = None
  try:
    inspect.signature(extend_step_fn).bind(
      model, ids, segment_pos, decode_loop_state
    )
  except TypeError:
    return False
  return True
