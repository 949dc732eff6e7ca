# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM, as a question the training loop asks once per step."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import jax


class StoppedEarlyError(KeyboardInterrupt):
  """A signal came before the first step: there is nothing to save."""


class Interrupts:
  """While entered, a signal asks the loop to stop; a second one stops at once.

  Before the loop has asked for the first time, the first one does.

  All processes of a job stop at the same step: there JAX's preemption service
  receives SIGTERM and agrees on a step, and Ctrl-C becomes a SIGTERM.
  """

  def __init__(self) -> None:
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

  def requested(self, step: int) -> bool:
    """Whether to stop before `step`; to be asked at every step."""
    self._has_begun = True
    if self._many:
      from jax.experimental import multihost_utils

      return multihost_utils.reached_preemption_sync_point(step)
    return self._asked

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
      f'\npax: {name}: finishing the step, then saving (once more: stop at'
      ' once)\n'.encode(),
    )
    if self._many:
      os.kill(os.getpid(), signal.SIGTERM)
