# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Optimizer states that wait on the host make the same steps."""

from __future__ import annotations

import types

import jax
import numpy as np
import pytest

from pax import partitioning, tasks_lib
from pax.checkpoints.formats import host_arrays
from pax.partitioning import memory, offload
from praxis import optimizers, pax_fiddle, schedules
from tests.pax import tiny
from tests.testing import nightly

_KEY = jax.random.key(7)


def _trained(mesh, *, offloaded, num_steps=2, ema_decay=0.0):
  task_p = tiny.task(mesh)
  task_p.train.offload_opt_states = offloaded
  task_p.train.learner.optimizer = pax_fiddle.Config(
    optimizers.Adam,
    learning_rate=0.1,
    lr_schedule=pax_fiddle.Config(schedules.Constant),
    ema_decay=ema_decay,
  )
  num_devices = 2 if mesh is None else int(np.prod(mesh))
  made = partitioning.partition_task(
    task_p, tiny.spec(tiny.batch()), devices=jax.devices()[:num_devices]
  )
  state, step = made.initialize(_KEY), made.train_step()
  losses = []
  for i in range(num_steps):
    state, output = step(state, made.put_batch(tiny.batch(seed=i)), _KEY)
    losses.append(float(output.loss))
  return made, state, losses


@pytest.mark.parametrize('mesh', [[1, 2, 2], *nightly.cases(None)])
def test_steps_are_the_same(mesh):
  made, state, losses = _trained(mesh, offloaded=True)
  plain, wanted, wanted_losses = _trained(mesh, offloaded=False)
  np.testing.assert_allclose(losses, wanted_losses, rtol=1e-6)
  for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
  kinds = {
    x.sharding.memory_kind for x in jax.tree.leaves(state.opt_states) if x.shape
  }
  assert kinds == {'pinned_host'}
  kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state.mdl_vars)}
  assert kinds == {'device'}
  # Adam's two moments are as large as the variables.
  share = made.preflight().state_bytes_per_device
  whole = plain.preflight().state_bytes_per_device
  assert whole / 4 < share < whole / 2.5
  assert memory.state_bytes_per_device(made.state_metadata.mdl_vars) <= share


def test_a_checkpoint_holds_what_is_on_the_host():
  made, state, _ = _trained([1, 2, 1], offloaded=True, num_steps=1)
  named = {str(i): x for i, x in enumerate(jax.tree.leaves(state.opt_states))}
  for name, array in host_arrays.snapshot(named).items():
    for index, piece in array.parts:
      np.testing.assert_array_equal(piece, np.asarray(named[name])[index])
  spec = jax.tree.leaves(made.state_metadata)
  for x, metadata in zip(jax.tree.leaves(state), spec, strict=True):
    array = jax.make_array_from_callback(
      x.shape, metadata.sharding, np.asarray(x).__getitem__
    )
    assert array.sharding.is_equivalent_to(x.sharding, x.ndim)
    assert array.sharding.memory_kind == x.sharding.memory_kind


@pytest.mark.parametrize('mesh', [*nightly.cases([1, 2, 2]), None])
def test_averages_of_variables_are_evaluated(mesh):
  losses = []
  for offloaded in (True, False):
    made, state, _ = _trained(mesh, offloaded=offloaded, ema_decay=0.5)
    averages = tasks_lib.extract_ema(state)
    output = made.eval_step()(averages, made.put_batch(tiny.batch()), _KEY)
    losses.append(float(output.loss))
  np.testing.assert_allclose(*losses, rtol=1e-6)


def test_devices_without_such_memory():
  device = types.SimpleNamespace(
    platform='toaster',
    addressable_memories=lambda: [types.SimpleNamespace(kind='device')],
  )
  mesh = types.SimpleNamespace(devices=np.array([device], object))
  with pytest.raises(ValueError, match='toaster has device; set task.train'):
    offload.offload_metadata({}, mesh)
