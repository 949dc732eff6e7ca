# SPDX-License-Identifier: Apache-2.0
"""The pure functions that a run repeats."""

from __future__ import annotations

from pax.steps.decode_step import decode_step as decode_step
from pax.steps.eval_step import eval_step as eval_step
from pax.steps.infer_step import infer_step as infer_step
from pax.steps.outputs import StepOutput as StepOutput
from pax.steps.train_step import train_step as train_step
