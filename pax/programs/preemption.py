# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM, as a question the training loop asks once per step."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import jax

from pax.programs import watchdog as watchdog_lib


class StoppedError(Exception):
  """A signal came between two batches, and the pass over them was left."""


class StoppedEarlyError(KeyboardInterrupt):
  """A signal came before the first step: there is nothing to save."""


class Interrupts:
  """While entered, a signal asks the loop to stop; a second one stops at once.

  Before the loop has asked for the first time, the first one does.

  All processes of a job stop before the same step or batch: there JAX's
  preemption service receives SIGTERM and agrees on how many of them there
  were, and Ctrl-C becomes a SIGTERM.
  """

  def __init__(
    self, watchdog: watchdog_lib.Watchdog | None = None, verb: str = 'saving'
  ) -> None:
    """Does not listen yet.

    Args:
      watchdog: Is told of every step and batch.
      verb: What happens after the step, as a person is told.
    """
    self._watchdog = watchdog or watchdog_lib.NoopWatchdog()
    self._verb = verb
    self._num_checks = 0
    self._asked = False
    self._has_begun = False
    self._previous: dict[int, Any] = {}
    self._many = jax.process_count() > 1

  def __enter__(self) -> Interrupts:
    handled = [signal.SIGINT] if self._many else [signal.SIGINT, signal.SIGTERM]
    for number in handled:
      self._previous[number] = signal.signal(number, self._ask)
    return self

  def __exit__(self, *unused: Any) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    self._watchdog.close()

  def requested(self) -> bool:
    """Whether to stop now; to be asked before every step.

    Processes ask equally often, for that is what they count.
    """
    self._has_begun = True
    self._watchdog.beat()
    self._num_checks += 1
    if self._many:
      from jax.experimental import multihost_utils

      return multihost_utils.reached_preemption_sync_point(self._num_checks)
    return self._asked

  def check_batch(self, count: int = 0) -> None:
    """To be called before each batch of a pass, in training or not.

    Raises:
      StoppedError: a signal asked to stop.
    """
    del count
    if self.requested():
      raise StoppedError

  def rest(self) -> None:
    """To be called before what takes its time, as writing a checkpoint."""
    self._watchdog.rest()

  def _ask(self, number: int, frame: FrameType | None) -> None:
    if self._asked:
      raise KeyboardInterrupt
    if not (self._has_begun or self._many):
      raise StoppedEarlyError
    self._asked = True
    name = 'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'
    # No print: the signal may have come in the middle of one.
    os.write(
      sys.__stderr__.fileno(),
      f'\npax: {name}: finishing the step, then {self._verb} (once more: stop'
      ' at once)\n'.encode(),
    )
    if self._many:
      os.kill(os.getpid(), signal.SIGTERM)
