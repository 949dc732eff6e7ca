# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Scalars travel in one array and read like scalars."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.steps import step_types
from praxis.pytypes import NestedMap


def _output():
  return step_types.pack_output(
    step_types.StepFnOutput(
      loss=jnp.float32(2.0),
      weighted_scalars={'acc': (jnp.bfloat16(0.5), jnp.float32(4.0))},
      summary_tensors={
        'norm_scalar': jnp.float32(3.0),
        'count_scalar': jnp.int32(2**24 + 1),
        'image_image': jnp.zeros((1, 2, 2, 3)),
      },
      per_example_out=NestedMap(ids=jnp.arange(3)),
    )
  )


def test_leaves_are_few_whatever_the_scalars():
  leaves = jax.tree.leaves(jax.jit(_output)())
  assert len(leaves) == len(['loss', 'packed', 'count', 'image', 'ids'])


def test_scalars_read_on_the_device():
  made = jax.jit(_output)()
  value, weight = made.weighted_scalars.acc
  assert isinstance(value, step_types.PackedScalar)
  assert (float(value), float(weight)) == (0.5, 4.0)
  assert np.asarray(value).shape == value.shape == ()
  assert jax.device_get(value) == np.float32(0.5)
  assert float(made.summary_tensors['norm_scalar']) == 3.0


def test_scalars_read_on_the_host():
  made = jax.device_get(_output())
  value, weight = made.weighted_scalars.acc
  assert (value, weight) == (0.5, 4.0)
  assert isinstance(made.summary_tensors['norm_scalar'], np.float32)


def test_what_is_no_float_scalar_keeps_its_array():
  summaries = _output().summary_tensors
  assert int(summaries['count_scalar']) == 2**24 + 1
  assert summaries['image_image'].shape == (1, 2, 2, 3)


def test_the_mean_of_a_scalar_summary_that_is_an_array():
  summaries = {
    'rows_scalar': jnp.float32([[1.0, 2.0], [3.0, 6.0]]),
    'counts_aggregate_scalar': jnp.int32([1, 2]),
    'x_histogram': jnp.float32([1.0, 2.0]),
  }
  made = step_types.pack_output(
    step_types.StepFnOutput(None, {}, NestedMap(), summaries)
  ).summary_tensors
  assert float(made['rows_scalar']) == 3.0
  assert float(made['counts_aggregate_scalar']) == 1.5
  assert made['x_histogram'].shape == (2,)


def test_metrics_without_a_mean():
  output = step_types.StepFnOutput(
    jnp.float32(1.0), {}, NestedMap(), {}, {'auc': object()}
  )
  with pytest.raises(ValueError, match="metrics \\['auc'\\] are not weighted"):
    step_types.pack_output(output)


def test_nothing_to_pack():
  made = step_types.pack_output(
    step_types.StepFnOutput(jnp.float32(1.0), {}, NestedMap(), {})
  )
  assert not made.weighted_scalars
  assert not made.summary_tensors


def _weighted(loss, weight=1.0):
  counts = NestedMap(counts=(jnp.float32([1.0, 2.0]), jnp.float32(weight)))
  return step_types.StepFnOutput(loss, counts, NestedMap(), {})


def test_arrays_have_weights_in_decoding():
  made = jax.jit(lambda: step_types.pack_output(_weighted(None, 3.0)))()
  value, weight = jax.device_get(made.weighted_scalars).counts
  np.testing.assert_array_equal(value, [1.0, 2.0])
  assert weight == 3.0


def test_an_array_among_the_scalars_of_a_loss():
  with pytest.raises(ValueError, match="'counts' must be numbers, got the sha"):
    step_types.pack_output(_weighted(jnp.float32(1.0)))
