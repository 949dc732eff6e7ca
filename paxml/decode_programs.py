# SPDX-License-Identifier: Apache-2.0
"""Re-exports the decode program under paxml's path."""

from __future__ import annotations

from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.program import DecodeProgramOutput

__all__ = ['DecodeProgramOutput', 'SingleTaskDecodeProgram']
