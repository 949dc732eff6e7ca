# SPDX-License-Identifier: Apache-2.0
"""What an experiment will do on a machine that need not be here."""

from __future__ import annotations

from pax.aot.check import Check as Check
from pax.aot.command import run as run
from pax.aot.report import Report as Report
from pax.aot.topology import Topology as Topology
