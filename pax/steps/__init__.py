# SPDX-License-Identifier: Apache-2.0
"""Pure step functions: train, eval, score, decode, infer."""

from __future__ import annotations

from pax.steps.eval_steps import decode_step as decode_step
from pax.steps.eval_steps import eval_step as eval_step
from pax.steps.eval_steps import infer_step as infer_step
from pax.steps.eval_steps import score_step as score_step
from pax.steps.eval_steps import token_log_probs_step as token_log_probs_step
from pax.steps.step_settings import StepSettings as StepSettings
from pax.steps.step_types import BaseStepFnStaticArgs as BaseStepFnStaticArgs
from pax.steps.step_types import Batch as Batch
from pax.steps.step_types import StepFnOutput as StepFnOutput
from pax.steps.step_types import StepOutput as StepOutput
from pax.steps.step_types import WeightedScalars as WeightedScalars
from pax.steps.step_types import pack_output as pack_output
from pax.steps.train_step import train_step as train_step
