# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Optimizer states split over replicas (ZeRO-1) make the same steps."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import pytest

from pax import partitioning, tasks_lib
from pax.partitioning import memory
from praxis import optimizers, pax_fiddle, schedules
from tests.pax import tiny
from tests.testing import collectives

_KEY = jax.random.key(7)
_REPLICAS = 4


def _partitioner(mesh, axes, ema_decay=0.0):
  task_p = tiny.task(mesh)
  task_p.train.opt_states_mesh_axes = axes
  task_p.train.learner.optimizer = pax_fiddle.Config(
    optimizers.Adam,
    learning_rate=0.1,
    lr_schedule=pax_fiddle.Config(schedules.Constant),
    ema_decay=ema_decay,
  )
  num_devices = 2 if mesh is None else math.prod(mesh)
  return partitioning.partition_task(
    task_p, tiny.spec(tiny.batch()), devices=jax.devices()[:num_devices]
  )


@functools.cache
def _split():
  """A partitioner of ZeRO-1."""
  return _partitioner([_REPLICAS, 1, 1], ('replica',))


@functools.cache
def _whole():
  """One that is the same, but for that."""
  return _partitioner([_REPLICAS, 1, 1], ())


def _steps(made, state, seeds):
  """Returns the state after steps on those batches, and their losses."""
  # Steps take the arrays they are given.
  state = jax.tree.map(
    lambda x, spec: jax.device_put(np.asarray(x), spec.sharding),
    state,
    made.state_metadata,
  )
  losses = []
  for seed in seeds:
    batch = made.put_batch(tiny.batch(seed=seed))
    state, output = made.train_step()(state, batch, _KEY)
    losses.append(float(output.loss))
  return state, losses


@functools.cache
def _start():
  return jax.device_get(_whole().initialize(_KEY))


@functools.cache
def _wanted():
  """What one device makes of three batches."""
  return _steps(_partitioner([1, 1, 1], ()), _start(), range(3))


def _check(got, wanted):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_steps_are_those_of_one_device():
  got = _steps(_split(), _start(), range(3))
  _check(got, _wanted())
  for x in jax.tree.leaves(got[0].opt_states):
    assert not x.shape or not x.sharding.is_fully_replicated
  for x in jax.tree.leaves(got[0].mdl_vars):
    assert x.sharding.is_fully_replicated


@pytest.mark.parametrize('order', [(_split, _whole), (_whole, _split)])
def test_a_job_goes_on_where_the_other_stopped(order):
  before, after = (made() for made in order)
  state, first = _steps(before, _start(), [0, 1])
  state, then = _steps(after, state, [2])
  _check((state, first + then), _wanted())


def test_each_replica_holds_its_part():
  def size(made):
    return memory.state_bytes_per_device(made.state_metadata.opt_states)

  scalars = sum(
    x.dtype.itemsize
    for x in jax.tree.leaves(_whole().state_metadata.opt_states)
    if not x.shape
  )
  each = (size(_whole()) - scalars) / _REPLICAS
  assert size(_split()) == each + scalars
  variables = [made.state_metadata.mdl_vars for made in (_split(), _whole())]
  assert memory.state_bytes_per_device(
    variables[0]
  ) == memory.state_bytes_per_device(variables[1])


def test_updates_are_gathered():
  def gathered(made):
    sent = collectives.find_collectives(made.train_step().compiled.as_text())
    return collectives.total_elements(sent, 'all-gather')

  assert gathered(_whole()) == 0
  assert gathered(_split()) == _split().num_params


def test_with_variables_that_are_split():
  mesh = [2, 2, 2]
  made, plain = (_partitioner(mesh, axes) for axes in (('replica',), ()))
  states = made.state_metadata.opt_states, plain.state_metadata.opt_states
  for x, y in zip(*map(jax.tree.leaves, states), strict=True):
    part, whole = (math.prod(z.sharding.shard_shape(z.shape)) for z in (x, y))
    assert part == (whole // 2 if x.shape else 1)
  _check(_steps(made, _start(), range(3)), _wanted())


def test_averages_of_variables_are_evaluated():
  axes = ('replica', 'data', 'mdl')
  made = _partitioner([2, 2, 2], axes, ema_decay=0.5)
  state, _ = _steps(made, made.initialize(_KEY), [0])
  averages = tasks_lib.extract_ema(state)
  shapes = tasks_lib.extract_ema(made.state_metadata)
  assert shapes == made.eval_state_metadata
  found = made.eval_step()(averages, made.put_batch(tiny.batch()), _KEY)
  alone = _partitioner([1, 1, 1], ())
  averages = jax.device_put(jax.device_get(averages), jax.devices()[0])
  wanted = alone.eval_step()(averages, alone.put_batch(tiny.batch()), _KEY)
  np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)


@pytest.mark.parametrize(
  ('mesh', 'axes', 'message'),
  [
    ([2, 1, 1], ('replicas',), r"opt_states_mesh_axes .* got \['replicas'\]"),
    (None, ('replica',), 'opt_states_mesh_axes needs a mesh'),
  ],
)
def test_where_there_is_nothing_to_split_over(mesh, axes, message):
  with pytest.raises(ValueError, match=message):
    _partitioner(mesh, axes)
