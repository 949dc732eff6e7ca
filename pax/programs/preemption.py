# SPDX-License-Identifier: Apache-2.0
"""Preemption: SIGINT and SIGTERM as a flag that loops poll."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import jax

from pax.programs import watchdog as watchdog_lib


class PreemptedError(Exception):
  """A signal arrived; the loop over batches ended before its next batch."""


class PreemptedBeforeFirstStepError(KeyboardInterrupt):
  """A signal arrived before the first step: there is nothing to save."""


class PreemptionHandler:
  """As a context manager, turns a signal into a request to stop.

  A second signal raises KeyboardInterrupt, and so does the first one before
  the first step.

  All processes of a job stop before the same step or batch: there, JAX's
  preemption service receives SIGTERM and the processes agree on the number of
  polls; SIGINT is sent on as SIGTERM.
  """

  def __init__(
    self, watchdog: watchdog_lib.Watchdog | None = None, verb: str = 'saving'
  ) -> None:
    """Does not install the handlers.

    Args:
      watchdog: Receives a heartbeat at every poll.
      verb: What the job does after the step, for the message to the user.
    """
    self._watchdog = watchdog or watchdog_lib.NoopWatchdog()
    self._verb = verb
    self._num_polls = 0
    self._is_requested = False
    self._previous_handlers: dict[int, Any] = {}
    self._is_multiprocess = jax.process_count() > 1

  def __enter__(self) -> PreemptionHandler:
    handled = [signal.SIGINT]
    if not self._is_multiprocess:
      handled.append(signal.SIGTERM)
    for number in handled:
      self._previous_handlers[number] = signal.signal(number, self._on_signal)
    return self

  def __exit__(self, *unused: Any) -> None:
    for number, handler in self._previous_handlers.items():
      signal.signal(number, handler)
    self._watchdog.close()

  def stop_requested(self) -> bool:
    """Returns whether to stop now; call it before every step.

    All processes must call it equally often.
    """
    self._watchdog.beat()
    self._num_polls += 1
    if self._is_multiprocess:
      from jax.experimental import multihost_utils

      return multihost_utils.reached_preemption_sync_point(self._num_polls)
    return self._is_requested

  def raise_if_requested(self, batch_index: int = 0) -> None:
    """Call it before each batch of an evaluation, decoding or inference.

    Raises:
      PreemptedError: A signal requested to stop.
    """
    del batch_index
    if self.stop_requested():
      raise PreemptedError

  def pause_watchdog(self) -> None:
    """Call it before slow work without heartbeats, as saving a checkpoint."""
    self._watchdog.pause()

  def _on_signal(self, number: int, frame: FrameType | None) -> None:
    if self._is_requested:
      raise KeyboardInterrupt
    if not (self._num_polls or self._is_multiprocess):
      raise PreemptedBeforeFirstStepError
    self._is_requested = True
    name = 'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'
    # print is not reentrant: the signal may have interrupted one.
    os.write(
      sys.__stderr__.fileno(),
      f'\npax: {name}: finishing the step, then {self._verb} (repeat to stop at'
      ' once)\n'.encode(),
    )
    if self._is_multiprocess:
      os.kill(os.getpid(), signal.SIGTERM)
