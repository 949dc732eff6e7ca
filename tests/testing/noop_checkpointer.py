# SPDX-License-Identifier: Apache-2.0
"""A checkpointer without files, for tests of what calls it."""

from __future__ import annotations

from collections.abc import Collection

from pax.checkpoints.types import CheckpointError, InputState, Restored, State


class NoopCheckpointer:
  """Saves nothing."""

  def is_due(self, step: int, *, force: bool = False) -> bool:
    return False

  def save(
    self,
    step: int,
    state: State,
    input_state: InputState | None = None,
    *,
    force: bool = False,
  ) -> bool:
    return False

  def latest_step(self) -> int | None:
    return None

  def set_frozen_leaves(self, leaves: Collection[str]) -> None:
    pass

  def pin(self, step: int, *, permanently: bool = False) -> None:
    pass

  def unpin(self, step: int) -> None:
    pass

  def restore(self, abstract: State, step: int | None = None) -> Restored:
    raise CheckpointError('there are no checkpoints')

  def wait(self) -> None:
    pass

  def close(self) -> None:
    pass

  def abandon(self, timeout_secs: float) -> None:
    pass
