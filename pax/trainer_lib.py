# SPDX-License-Identifier: Apache-2.0
"""Names of steps and modes, where users of paxml look for them."""

from __future__ import annotations

from pax.programs.program import BaseStepFnStaticArgs
from pax.programs.running_mode import RunningMode
from pax.steps.outputs import StepOutput as StepFnOutput

__all__ = ['BaseStepFnStaticArgs', 'RunningMode', 'StepFnOutput']
