# SPDX-License-Identifier: Apache-2.0
"""Re-exports the parser of an experiment's constants under paxml's path."""

from __future__ import annotations

from pax.experiment_vars_summary import parse

__all__ = ['parse']
