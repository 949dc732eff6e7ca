# SPDX-License-Identifier: Apache-2.0
"""The privacy of DP-SGD: epsilon after a number of steps, by dp-accounting.

References:
  Mironov et al., https://arxiv.org/abs/1908.10530
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from absl import logging


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
  """The subsampled Gaussian mechanism that a step of DP-SGD applies."""

  # Standard deviation of the noise, in units of what one example can change.
  noise_multiplier: float
  # Probability that a batch has a given example.
  sampling_probability: float
  # Probability that the guarantee of epsilon does not hold.
  delta: float


class Account(Protocol):
  """The privacy loss of a run after a number of steps."""

  def epsilon(self, steps: int) -> float | None:
    """Returns epsilon after a number of steps; None if it is not known."""

  def line(self, steps: int) -> str:
    """Returns a line for the log; empty if nothing is known."""


class NoopAccount:
  """The account of steps without a guarantee of privacy."""

  def epsilon(self, steps: int) -> None:
    return None

  def line(self, steps: int) -> str:
    return ''


class RdpAccount:
  """Renyi differential privacy of Poisson-sampled Gaussian mechanisms.

  Examples are drawn independently in the analysis; training shuffles them,
  which is the usual approximation. Neighboring data sets differ by one example
  that is added or removed.
  """

  def __init__(self, mechanism: Mechanism):
    """Takes the mechanism of each step.

    Raises:
      ModuleNotFoundError: dp-accounting is not installed.
    """
    # Takes seconds to import.
    import dp_accounting

    self._mechanism = mechanism
    self._step = dp_accounting.PoissonSampledDpEvent(
      mechanism.sampling_probability,
      dp_accounting.GaussianDpEvent(mechanism.noise_multiplier),
    )
    self._new_accountant = dp_accounting.rdp.RdpAccountant

  def epsilon(self, steps: int) -> float:
    """Returns epsilon after a number of steps."""
    accountant = self._new_accountant()
    accountant.compose(self._step, steps)
    return float(accountant.get_epsilon(self._mechanism.delta))

  def line(self, steps: int) -> str:
    """Returns `DP-SGD: epsilon 2.92 at delta 1e-05 after 14062 steps`."""
    mechanism = self._mechanism
    return (
      f'DP-SGD: epsilon {self.epsilon(steps):.3g} at delta {mechanism.delta:g}'
      f' after {steps} steps (noise multiplier'
      f' {mechanism.noise_multiplier:g}, sampling probability'
      f' {mechanism.sampling_probability:.3g})'
    )


def account(mechanism: Mechanism | None) -> Account:
  """Returns the account of a mechanism, None without a guarantee.

  Logs once if dp-accounting is not installed.
  """
  if mechanism is None:
    return NoopAccount()
  try:
    return RdpAccount(mechanism)
  except ModuleNotFoundError:
    logging.warning(
      'the epsilon of DP-SGD needs dp-accounting: pip install "pax-jax[dp]"'
    )
    return NoopAccount()
