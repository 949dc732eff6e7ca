# SPDX-License-Identifier: Apache-2.0
"""When masks of sparse weights are computed anew."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from praxis import pax_fiddle


@dataclasses.dataclass
class BaseSparsityScheduleMode(abc.ABC):
  """Says when a mask is computed anew."""

  @abc.abstractmethod
  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns whether to do so at `step`, after so many times."""

  @abc.abstractmethod
  def get_num_shots(self) -> int:
    """Returns how many times it is done; -1 for no limit."""


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class TrainingMode(BaseSparsityScheduleMode):
  """At every step from a certain one on."""

  target_step: int = 0

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns whether `step` has come."""
    return jnp.greater_equal(step, self.target_step)

  def get_num_shots(self) -> int:
    """Returns -1: there is no limit."""
    return -1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class OneShotMode(BaseSparsityScheduleMode):
  """Once, at a certain step."""

  target_step: int = 0

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns whether it is that step."""
    is_first = jnp.less(mask_update_times, 1)
    return jnp.logical_and(jnp.equal(step, self.target_step), is_first)

  def get_num_shots(self) -> int:
    """Returns 1."""
    return 1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class MaterializeMode(BaseSparsityScheduleMode):
  """Never; masks are there, and applied."""

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns False."""
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    """Returns -1, as in training."""
    return -1


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class InferenceMode(BaseSparsityScheduleMode):
  """Never; there are no masks, weights have their zeros."""

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns False."""
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    """Returns 0."""
    return 0


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class FewShotMode(BaseSparsityScheduleMode):
  """A few times, some steps apart."""

  # How many times; more than one.
  num_shots: int = 0
  # How many steps apart.
  mask_update_interval: int = 1
  # The step of the first time, and of the next.
  target_step: int = 0
  next_target_step: int = 0

  def __post_init__(self) -> None:
    if self.num_shots <= 1:
      raise ValueError(
        f'num_shots must be more than 1, got {self.num_shots}; OneShotMode is '
        'for once'
      )
    self.next_target_step = self.target_step

  def update_cond(self, step: Any, mask_update_times: Any) -> Bool[Array, '']:
    """Returns whether it is the next step, of those that are left."""
    is_left = jnp.less(mask_update_times, self.num_shots)
    return jnp.logical_and(jnp.equal(step, self.next_target_step), is_left)

  def increment_target_step(self, mask_update_times: Any) -> None:
    """Sets the next step, after so many times."""
    waited = mask_update_times * self.mask_update_interval
    self.next_target_step = self.target_step + waited

  def get_num_shots(self) -> int:
    """Returns num_shots."""
    return self.num_shots
