# SPDX-License-Identifier: Apache-2.0
"""Studies: a search over constants, with each trial in its own process."""

from __future__ import annotations

from pax.studies.command import run as run
