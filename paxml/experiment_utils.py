# SPDX-License-Identifier: Apache-2.0
"""Re-exports the text of an experiment's constants under paxml's path."""

from __future__ import annotations

from pax.experiment_vars_summary import get_cls_vars_summary

__all__ = ['get_cls_vars_summary']
