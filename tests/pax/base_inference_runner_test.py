# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Outputs of inference become records that their schema describes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pax import tf_records
from praxis.pytypes import NestedMap
from tests.pax import tiny


def test_a_record_for_each_example():
  runner = tiny.TinyRunner.config().Instantiate()
  outputs = NestedMap(guess=jnp.float32([1.0, 2.0]))
  assert runner.serialize_outputs(outputs) == [
    tf_records.example({'guess': np.float32(x)}) for x in (1.0, 2.0)
  ]


def test_outputs_that_are_not_in_the_schema():
  runner = tiny.TinyRunner.config().Instantiate()
  with pytest.raises(ValueError, match='output_schema has shapes'):
    runner.serialize_outputs(NestedMap(other=jnp.zeros(2)))


def test_a_task_without_a_runner():
  task = tiny.task().Instantiate()
  with pytest.raises(ValueError, match='inference_runner is not set'):
    _ = task.inference_runner
