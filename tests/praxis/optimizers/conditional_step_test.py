# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Work that is not due is not done, for stacked layers neither."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from praxis.optimizers import conditional_step


def test_work_is_done_when_due_for_any_layer():
  done = []

  def step(due, x):
    def compute():
      jax.debug.callback(lambda: done.append(1))
      return {'x': 2.0 * x}

    return conditional_step.run_if(due, compute, {'x': x})['x']

  every = jax.jit(jax.vmap(step))
  x = jnp.arange(3.0)
  none = jnp.zeros(3, bool)
  np.testing.assert_array_equal(every(none, x), x)
  jax.effects_barrier()
  assert not done
  np.testing.assert_array_equal(every(none.at[1].set(True), x), [0.0, 2.0, 2.0])
  jax.effects_barrier()
  assert done
