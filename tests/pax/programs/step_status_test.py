# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The status of a step, and counts of skipped and non-finite steps."""

from __future__ import annotations

import types

import jax.numpy as jnp
import pytest

from pax.programs import step_status
from pax.programs.step_status import StepStatus
from pax.steps import step_types
from praxis.pytypes import NestedMap

FINE = StepStatus(is_finite=True, is_skipped=False)
# Skipped, for its norm is above skip_step_gradient_norm_value.
LARGE = StepStatus(is_finite=True, is_skipped=True)
SKIPPED = StepStatus(is_finite=False, is_skipped=True)
APPLIED = StepStatus(is_finite=False, is_skipped=False)


def test_summaries_of_a_step_count_the_steps_in_flight_before_it():
  counts = step_status.StepCounts().after(SKIPPED)
  pending = [lambda: LARGE, lambda: SKIPPED]
  assert step_status.count_scalars(counts, pending) == {
    'learning/consecutive_skipped_steps': 3.0,
    'learning/consecutive_nonfinite_steps': 1.0,
  }


@pytest.mark.parametrize(
  ('summaries', 'loss', 'skips', 'expected'),
  [
    ({'learning/is_valid_step_aggregate_scalar': 1.0}, 1.0, True, FINE),
    ({'learning/is_valid_step_aggregate_scalar': 0.0}, 1.0, True, SKIPPED),
    ({'learning/is_valid_step_aggregate_scalar': 0.0}, 1.0, False, APPLIED),
    (
      {
        'learning/is_valid_step_aggregate_scalar': 0.0,
        'learning/is_finite_gradient_aggregate_scalar': 1.0,
      },
      1.0,
      True,
      LARGE,
    ),
    (
      {
        'learning/is_valid_step_aggregate_scalar': 0.0,
        'learning/is_finite_gradient_aggregate_scalar': 0.0,
      },
      1.0,
      True,
      SKIPPED,
    ),
    # Without the check of the learner, only the loss shows it.
    ({}, 1.0, True, FINE),
    ({}, float('nan'), True, APPLIED),
    (
      {'learning/is_valid_step_aggregate_scalar': 1.0},
      float('inf'),
      True,
      APPLIED,
    ),
  ],
)
def test_the_status_of_a_step(summaries, loss, skips, expected):
  output = step_types.pack_output(
    step_types.StepFnOutput(
      loss=jnp.float32(loss),
      weighted_scalars={},
      per_example_out=NestedMap(),
      summary_tensors={'a_scalar': jnp.float32(0)}
      | {name: jnp.float32(x) for name, x in summaries.items()},
    )
  )
  reader = step_status.StatusReader(
    types.SimpleNamespace(
      check_valid_step=True, enable_skip_step_on_gradient_anomalies=skips
    )
  )
  for step_output in (output, output):
    status = reader.start(output.loss, step_output)
    assert status() == expected


def test_programs_without_a_step_output_are_judged_by_the_loss():
  reader = step_status.StatusReader(
    types.SimpleNamespace(
      check_valid_step=True, enable_skip_step_on_gradient_anomalies=True
    )
  )

  def status(loss):
    return reader.start(loss, None)()

  assert status(jnp.float32(jnp.nan)) == APPLIED
  assert status(jnp.float32(1)) == status(None) == FINE
