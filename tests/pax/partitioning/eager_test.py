# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""With JAX_DISABLE_JIT steps run operation by operation, with equal results."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax import partitioning
from pax.summaries import mfu
from tests.pax import tiny
from tests.testing import nightly


@pytest.fixture
def disable_jit():
  """Returns a function that does what JAX_DISABLE_JIT=1 does."""
  yield lambda: jax.config.update('jax_disable_jit', True)
  jax.config.update('jax_disable_jit', False)


def _step(mesh, num_devices):
  """Returns (loss, weights, loss after the step)."""
  batch = tiny.batch()
  made = partitioning.partition_task(
    tiny.task(mesh), tiny.spec(batch), devices=jax.devices()[:num_devices]
  )
  key = jax.random.key(0)
  placed = made.put_batch(batch)
  state, output = made.train_step().compile()(made.initialize(key), placed, key)
  evaluated = made.eval_step_for(placed)(state.to_eval_state(), placed, key)
  return output.loss, tiny.weights(state), evaluated.loss


@pytest.mark.parametrize(
  ('mesh', 'num_devices'),
  [*nightly.cases(([1, 1, 1], 1)), ([1, 2, 2], 4)],
)
def test_a_step_without_jit(mesh, num_devices, disable_jit):
  compiled = _step(mesh, num_devices)
  disable_jit()
  jax.tree.map(
    lambda eager, want: np.testing.assert_allclose(eager, want, 1e-5, 1e-6),
    _step(mesh, num_devices),
    compiled,
  )


def test_the_peak_of_a_cpu_without_jit(monkeypatch, disable_jit):
  monkeypatch.setattr(mfu, '_MEASURED_SIZE', 64)
  mfu._measured_cpu.cache_clear()
  disable_jit()
  assert mfu.peak_flops(jax.devices()[:1]).flops > 1e6
  mfu._measured_cpu.cache_clear()
