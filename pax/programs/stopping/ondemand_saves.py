# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on demand: a signal saves the state, and training continues.

The mode of `--noexit_after_ondemand_checkpoint`. All processes of a job save
before the same step, whichever process receives the signal.
"""

from __future__ import annotations

import jax

from pax import coordination_service, stop_signals
from pax.programs.stopping import stop_agreement
from pax.programs.stopping.stop_request import StopRequest

_STORE = 'save'


class OnDemandSaves:
  """Requests to save, which the training loop polls."""

  def __init__(self) -> None:
    self._is_due = False
    self._open()

  def request(self, reason: str) -> None:
    """Requests a save; one is enough until it is due. Any thread may call it.

    Args:
      reason: The name of the signal, for the message to the user.
    """
    if self._request.set(reason) and self._agreement is None:
      self._print_request()

  def poll(self) -> None:
    """Call it with each poll of a stop: all processes do it equally often."""
    if self._agreement is None:
      has_request = self._request.is_set()
    else:
      has_request = self._agreement.poll()
    if has_request:
      self._is_due = True
      self.close()
      self._open()

  def take(self) -> bool:
    """Returns whether to save the state now, once per request."""
    is_due, self._is_due = self._is_due, False
    return is_due

  def close(self) -> None:
    """Stops waiting for requests of other processes."""
    if self._agreement is not None:
      self._agreement.close()

  def _open(self) -> None:
    self._request = StopRequest()
    self._agreement: stop_agreement.PollAgreement | None = None
    if jax.process_count() > 1:
      self._agreement = stop_agreement.PollAgreement(
        self._request,
        coordination_service.CoordinationStore(_STORE),
        on_agreed=self._print_request,
      )

  def _print_request(self) -> None:
    stop_signals.print_message(
      f'{self._request.reason}: saving before the next step; training continues'
      ' (--noexit_after_ondemand_checkpoint)'
    )
