# SPDX-License-Identifier: Apache-2.0
"""The overflow of one weight is located in every kind of parallelism."""

# bazel: size=large
# bazel: tags=nightly
from __future__ import annotations

import jax
import numpy as np
import pytest

from pax.partitioning import nonfinite
from praxis import py_utils
from tests.integration import parallelism
from tests.integration.parallelism import Case

_WEIGHT = 'ff_layer/ffn_layer1/linear/w'


@pytest.mark.parametrize(
  ('case', 'iterations'),
  [
    (Case(data=2, mdl=2), ('4 of 4',)),
    (Case(pmap=True), ('4 of 4',)),
    # The second stage has nothing but zeros until the second iteration; its
    # second layer overflows.
    (Case(stages=2), ('2 of 5', '2 of 2')),
  ],
)
def test_the_layer_whose_weight_overflows(case, iterations):
  partitioner, state, batch = parallelism.prepare(case)
  (weight,) = (
    value
    for path, value in py_utils.tree_paths(state.mdl_vars)
    if path.endswith(_WEIGHT)
  )
  # The last layer, of the last stage.
  weight[(-1,) * (weight.ndim - 2)] *= 1e38
  state = parallelism.put_state(partitioner, state)
  report = nonfinite.locate(
    partitioner.train_step(),
    partitioner.mesh,
    state,
    partitioner.put_batch(batch),
    jax.random.key(0),
  )
  assert report.arguments == ()
  assert report.origin.kind == 'NaN'
  origin = report.origin.cause
  assert (origin.kind, origin.operation) == ('inf', 'dot_general')
  assert origin.scope.endswith('ffn_layer1/linear/einsum/...i,io->...o')
  assert origin.iterations == iterations
  assert not origin.is_backward
  assert not np.isnan(float(origin.operands[0].split()[-1]))
