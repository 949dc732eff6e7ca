# SPDX-License-Identifier: Apache-2.0
"""The state of a training run: one pytree that a step maps to the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from praxis import pytypes

Nested = pytypes.Nested


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
  """Step, variables and optimizer states of a run.

  The leaves are arrays while training; the same class holds their shapes,
  shardings or partition specs.
  """

  # Number of updates done so far: uint32 scalar.
  step: Any
  # Variables by collection: 'params', 'non_trainable', ...
  mdl_vars: Nested[Any]
  # One state for each learner.
  opt_states: list[Nested[Any]]
  # What a program of the user's own carries along.
  extra_state: tuple[Any, ...] = ()

  def replace(self, **changes: Any) -> TrainState:
    """Returns a copy with some fields changed."""
    return dataclasses.replace(self, **changes)

  def new_state(
    self,
    mdl_vars: Nested[Any],
    opt_states: list[Nested[Any]],
    extra_state: tuple[Any, ...] = (),
  ) -> TrainState:
    """Returns the state one step later."""
    return TrainState(
      step=self.step + 1,
      mdl_vars=mdl_vars,
      opt_states=opt_states,
      extra_state=extra_state,
    )

  def to_eval_state(self) -> TrainState:
    """Returns this state without what only training needs."""
    return self.replace(opt_states=[])


@dataclasses.dataclass(frozen=True)
class TensorProvenance:
  """Where the first value of one array came from."""

  checkpoint_path: str = 'random_init'
  checkpoint_step: int | None = None

  def __repr__(self) -> str:
    if self.checkpoint_step is None:
      return f'"{self.checkpoint_path}"'
    return f'"{self.checkpoint_path}:{self.checkpoint_step}"'


TrainStateProvenance = TrainState


def build_train_state_provenance(
  train_state: TrainState,
  checkpoint_path: str = 'random_init',
  step: int | None = None,
) -> TrainStateProvenance:
  """Returns a TrainState whose leaves all tell the same origin."""
  origin = TensorProvenance(checkpoint_path, step)
  return jax.tree.map(lambda _: origin, train_state)
