# SPDX-License-Identifier: Apache-2.0
"""Schedules of the updates of sparsity masks."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from praxis import pax_fiddle
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


@dataclasses.dataclass
class BaseSparsityScheduleMode(abc.ABC):
  """A schedule of mask updates."""

  @abc.abstractmethod
  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Whether to update at `step`, after `mask_update_times` updates."""

  @abc.abstractmethod
  def get_num_shots(self) -> int:
    """Returns the maximum number of updates; -1: no limit."""


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class TrainingMode(BaseSparsityScheduleMode):
  """Updates at every step from target_step on."""

  target_step: int = 0

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Whether `step` has reached target_step."""
    return jnp.greater_equal(step, self.target_step)

  def get_num_shots(self) -> int:
    """Returns -1: there is no limit."""
    return -1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class OneShotMode(BaseSparsityScheduleMode):
  """One update at target_step."""

  target_step: int = 0

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Whether `step` is target_step."""
    is_first = jnp.less(mask_update_times, 1)
    return jnp.logical_and(jnp.equal(step, self.target_step), is_first)

  def get_num_shots(self) -> int:
    """Returns 1."""
    return 1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class MaterializeMode(BaseSparsityScheduleMode):
  """No updates; masks exist and are applied."""

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns False."""
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    """Returns -1, as in training."""
    return -1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class InferenceMode(BaseSparsityScheduleMode):
  """No masks; the weights are already pruned."""

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns False."""
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    """Returns 0."""
    return 0


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class FewShotMode(BaseSparsityScheduleMode):
  """Several updates at regular intervals."""

  # Number of updates; more than one.
  num_shots: int = 0
  # Number of steps between updates.
  mask_update_interval: int = 1
  # The steps of the first and of the next update.
  target_step: int = 0
  next_target_step: int = 0

  def __post_init__(self) -> None:
    if self.num_shots <= 1:
      raise ValueError(
        f'num_shots must be more than 1, got {self.num_shots}; use OneShotMode '
        'for one update'
      )
    self.next_target_step = self.target_step

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Whether `step` is that of the next update."""
    has_remaining = jnp.less(mask_update_times, self.num_shots)
    return jnp.logical_and(
      jnp.equal(step, self.next_target_step), has_remaining
    )

  def increment_target_step(self, mask_update_times: Any) -> None:
    """Sets the step of the next update, after `mask_update_times` updates."""
    elapsed = mask_update_times * self.mask_update_interval
    self.next_target_step = self.target_step + elapsed

  def get_num_shots(self) -> int:
    """Returns num_shots."""
    return self.num_shots
