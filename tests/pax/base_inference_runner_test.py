# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Outputs of inference become records that their schema describes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.files import tf_records
from praxis.pytypes import NestedMap
from tests.pax import tiny


def test_a_record_for_each_example():
  runner = tiny.TinyRunner.config().Instantiate()
  outputs = NestedMap(guess=jnp.float32([1.0, 2.0]))
  assert runner.serialize_outputs(outputs) == [
    tf_records.example({'guess': np.float32(x)}) for x in (1.0, 2.0)
  ]


class _TextRunner(tiny.TinyRunner):
  @property
  def output_schema(self):
    return NestedMap(text=jax.ShapeDtypeStruct((), object))


def test_texts_are_arrays_of_objects():
  runner = _TextRunner.config().Instantiate()
  texts = [b'one', 'zwölf'.encode()]
  records = runner.serialize_outputs(NestedMap(text=np.array(texts, object)))
  parsed = [tf_records.parse_example(record) for record in records]
  assert [example['text'] for example in parsed] == [[text] for text in texts]


def test_outputs_that_are_not_in_the_schema():
  runner = tiny.TinyRunner.config().Instantiate()
  with pytest.raises(ValueError, match='output_schema has shapes'):
    runner.serialize_outputs(NestedMap(other=jnp.zeros(2)))


def test_a_task_without_a_runner():
  task = tiny.task().Instantiate()
  with pytest.raises(ValueError, match='inference_runner is not set'):
    _ = task.inference_runner
