# SPDX-License-Identifier: Apache-2.0
"""Upstream's path to `pax.learners.stochastic_gradients`."""

from __future__ import annotations

from pax.learners.stochastic_gradients import *  # noqa: F403
from pax.learners.stochastic_gradients import __all__ as __all__
