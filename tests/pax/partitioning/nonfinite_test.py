# SPDX-License-Identifier: Apache-2.0
"""Locations in train steps of a tiny model, on a mesh and on replicas."""

# bazel: size=medium
from __future__ import annotations

import jax
import numpy as np
import pytest

from pax import partitioning
from pax.partitioning import nonfinite
from tests.pax import tiny
from tests.testing import nightly


def _locate(mesh, batch, change=lambda state: state):
  partitioner = partitioning.partition_task(
    tiny.task(mesh=mesh), tiny.spec(batch), devices=jax.devices()[:2]
  )
  key = jax.random.key(0)
  state = change(partitioner.initialize(key))
  return nonfinite.locate(
    partitioner.train_step(),
    partitioner.mesh,
    state,
    partitioner.put_batch(batch),
    key,
  )


def test_a_finite_step():
  report = _locate([1, 2, 1], tiny.batch())
  assert report == nonfinite.NonfiniteReport((), None)


@pytest.mark.parametrize(
  'mesh',
  [
    None,
    *nightly.cases([1, 2, 1], [1, 1, 2]),
  ],
)
def test_nan_in_the_batch(mesh):
  batch = tiny.batch()
  batch.x[3, 2] = np.nan
  report = _locate(mesh, batch)
  assert report.arguments == ('batch x (NaN)',)
  assert report.origin.scope == 'argument batch x'


def test_inf_in_a_variable():
  def change(state):
    params = state.mdl_vars['params']
    params['first']['bias']['b'] = (
      params['first']['bias']['b'].at[3].set(np.inf)
    )
    return state

  report = _locate([1, 1, 2], tiny.batch(), change=change)
  assert report.arguments == ('variable params/first/bias/b (inf)',)
  assert 'variable params/first/bias/b (inf)' in str(report)


@pytest.mark.parametrize(
  'mesh',
  [
    *nightly.cases(None),
    [1, 2, 1],
    *nightly.cases([1, 1, 2]),
  ],
)
def test_overflow_of_a_layer(mesh):
  batch = tiny.batch()
  batch.y[2] = 1e30
  report = _locate(mesh, batch)
  assert report.arguments == ()
  assert report.origin.kind == 'inf'
  assert report.origin.operation in ('square', 'integer_pow')
  assert 'compute_loss' in report.origin.scope
  assert 'tiny.py' in report.origin.source
  assert not report.origin.is_backward


def test_a_gradient_whose_norm_overflows():
  batch = tiny.batch()
  batch.y[2] = 1e18
  batch.x *= 1e4
  report = _locate([1, 2, 1], batch)
  assert report.arguments == ()
  assert 'clipping.py' in report.origin.source
