# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time analysis of experiments: memory, FLOPs, collectives, MFU."""

from __future__ import annotations

from pax.aot.analysis import Analysis as Analysis
from pax.aot.analysis import analyze as analyze
from pax.aot.cli import run as run
from pax.aot.report.step_report import Report as Report
from pax.aot.target import Target as Target
from pax.aot.target import create_target as create_target
from pax.aot.topology import Topology as Topology
