# SPDX-License-Identifier: Apache-2.0
"""`--study=local`: trials of an experiment, each a process of its own."""

from __future__ import annotations

from pax.studies.command import run as run
