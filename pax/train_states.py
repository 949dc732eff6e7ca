# SPDX-License-Identifier: Apache-2.0
"""The train state: the pytree that a step updates."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeAlias, TypeVar

import jax

from praxis import pytypes
from praxis.pytypes import Nested

# Array, jax.ShapeDtypeStruct, sharding, PartitionSpec or TensorProvenance.
LeafT = TypeVar('LeafT')
# Variables, or what describes each of them, by collection: 'params' and others.
Variables: TypeAlias = dict[str, Nested[LeafT]]
# Path and step of a checkpoint.
JTensorProvenance = tuple[str, int | None]
ExtraStateType = pytypes.NestedJTensorOrPartitionSpec | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState(Generic[LeafT]):
  """Step, variables and optimizer states.

  `TrainState` without a parameter has arrays as leaves;
  `TrainState[jax.ShapeDtypeStruct]` has their shapes, and so on.
  """

  # Number of updates: uint32 scalar.
  step: LeafT
  # Variables by collection ('params', 'non_trainable', ...) and layer path.
  mdl_vars: Variables[LeafT]
  # State of the optimizer of each learner; empty in eval states.
  opt_states: list[Nested[LeafT]]
  # State of user-defined programs.
  extra_state: ExtraStateType = ()

  def replace(self, **changes: Any) -> TrainState[LeafT]:
    """Returns a copy with some fields changed."""
    return dataclasses.replace(self, **changes)

  def new_state(
    self: TrainState[jax.Array],
    mdl_vars: Variables[jax.Array],
    opt_states: list[Nested[jax.Array]],
    extra_state: ExtraStateType = (),
  ) -> TrainState[jax.Array]:
    """Returns the state of the next step."""
    return TrainState(
      step=self.step + 1,
      mdl_vars=mdl_vars,
      opt_states=opt_states,
      extra_state=extra_state,
    )

  def to_eval_state(self) -> TrainState[LeafT]:
    """Returns the state without optimizer states."""
    return self.replace(opt_states=[])


@dataclasses.dataclass(frozen=True)
class TensorProvenance:
  """Origin of the initial value of one array."""

  checkpoint_path: str = 'random_init'
  checkpoint_step: int | None = None

  def __repr__(self) -> str:
    if self.checkpoint_step is None:
      return f'"{self.checkpoint_path}"'
    return f'"{self.checkpoint_path}:{self.checkpoint_step}"'


# The class itself: isinstance takes no parametrized type.
TrainStateProvenance = TrainState


def build_train_state_provenance(
  train_state: TrainState,
  checkpoint_path: str = 'random_init',
  step: int | None = None,
) -> TrainStateProvenance:
  """Returns a TrainState whose leaves all have the same origin."""
  origin = TensorProvenance(checkpoint_path, step)
  return jax.tree.map(lambda _: origin, train_state)
