# SPDX-License-Identifier: Apache-2.0
"""Programs, the jitted steps of a job; users may subclass them."""

from __future__ import annotations

from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.eval import (
  BaseEvalProgram,
  SingleTaskEvalProgram,
)
from pax.programs.lm_evaluation.program import LmEvalProgram, LmEvalSettings
from pax.programs.output_files import (
  can_load_written_outputs,
  get_filename,
  maybe_write_eval_outputs,
  safe_write_key_value_pairs,
)
from pax.programs.program import (
  BaseStepFnStaticArgs,
  DecodeProgramOutput,
  EvalProgramOutput,
  Program,
  ProgramOutput,
  TrainProgramOutput,
  get_eval_train_state,
  get_summary_base_dir,
)
from pax.programs.rollouts.programs import (
  RewardDecodeProgram,
  RolloutTrainProgram,
)
from pax.programs.train_program import (
  BaseTrainProgram,
  SingleTaskTrainProgram,
)

__all__ = [
  'BaseEvalProgram',
  'BaseStepFnStaticArgs',
  'BaseTrainProgram',
  'DecodeProgramOutput',
  'EvalProgramOutput',
  'LmEvalProgram',
  'LmEvalSettings',
  'Program',
  'ProgramOutput',
  'RewardDecodeProgram',
  'RolloutTrainProgram',
  'SingleTaskDecodeProgram',
  'SingleTaskEvalProgram',
  'SingleTaskTrainProgram',
  'TrainProgramOutput',
  'can_load_written_outputs',
  'get_eval_train_state',
  'get_filename',
  'get_summary_base_dir',
  'maybe_write_eval_outputs',
  'safe_write_key_value_pairs',
]
