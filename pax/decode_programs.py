# SPDX-License-Identifier: Apache-2.0
"""The decode program, where users of paxml look for it."""

from __future__ import annotations

from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.program import DecodeProgramOutput

__all__ = ['DecodeProgramOutput', 'SingleTaskDecodeProgram']
