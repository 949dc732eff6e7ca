# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Arguments and effect of early stopping functions."""

from __future__ import annotations

from pax.programs import early_stopping
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput
from pax.programs.running_mode import RunningMode

FOUND = early_stopping.EvalResults(
  train={'loss': (1.0, 8)},
  eval_train={'loss': 2.0},
  evals={
    'held_out': EvalProgramOutput(
      None,
      eval_metrics={'loss': 3.0},
      eval_scoring_metrics={'f1': 4.0},
      steps_per_sec=9.0,
    ),
    'not_timed': EvalProgramOutput(None),
  },
  decodes={
    'prompts': DecodeProgramOutput(
      None,
      decode_metrics={'length': 5.0},
      processed_decode_metrics={'bleu': 6.0},
    )
  },
  job_scalars={'num_params': 7, 'train_steps_per_sec': 8.0},
)


def test_names_of_metrics():
  assert FOUND.metrics() == {
    'train/loss': 1.0,
    'eval_train/metrics/loss': 2.0,
    'eval_test_held_out/metrics/loss': 3.0,
    'eval_test_held_out/scoring_eval/f1': 4.0,
    'decode_test_prompts/length': 5.0,
    'decode_test_prompts/bleu': 6.0,
    'num_params': 7.0,
    'train_steps_per_sec': 8.0,
    'eval_steps_per_sec': 9.0,
  }


def test_the_function_is_asked():
  calls = []

  def stops(*args):
    calls.append(args)
    return args[2] > 4

  verdict = early_stopping.create_early_stopping(stops, '/job')
  assert not verdict.should_stop(4, False, early_stopping.EvalResults())
  assert verdict.should_stop(5, True, FOUND)
  assert calls[0] == ({}, RunningMode.UNKNOWN, 4, False, '/job/checkpoints')
  mode = RunningMode.TRAIN | RunningMode.EVAL | RunningMode.DECODE
  assert calls[1][1:4] == (mode, 5, True)
  assert mode.has_train and mode.has_eval and mode.has_decode


def test_without_a_function_nothing_stops():
  assert not early_stopping.create_early_stopping(None, '/job').should_stop(
    9, True, FOUND
  )
