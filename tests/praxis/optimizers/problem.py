# SPDX-License-Identifier: Apache-2.0
"""A few variables and the same gradients for every optimizer under test."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, schedules
from tests.praxis.layers import running

STEPS = 20
jit = running.jit
_FLAG = base_layer.WeightHParamsCollection.SKIP_LP_REGULARIZATION
SCHEDULE = schedules.LinearRampupExponentialDecay.config(
  max=1.0, warmup_steps=5, decay_start=10, decay_end=30, min_ratio=0.1
)
LEARNING_RATE = 0.1


def weight(shape, **kwargs):
  return base_layer.WeightHParams(shape, dtype=jnp.float32, **kwargs)


def hparams():
  return {
    'params': {
      'w': weight([4, 6]),
      'b': weight([6]),
      'skipped': weight([3, 2], collections=[_FLAG]),
    }
  }


def variables(seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda hp: rng.normal(size=hp.full_shape).astype(np.float32), hparams()
  )


def gradients(params, step):
  """Returns gradients that depend on the variables and on the step."""
  return jax.tree.map(
    lambda w: jnp.sin(3.0 * w + step) * (1.0 + step % 3) + 0.1 * w, params
  )


def lr(step):
  return LEARNING_RATE * SCHEDULE.Instantiate().value_at(step)


def tx_of(config, **kwargs):
  """Returns the transformation of an optimizer with the common schedule."""
  config = config.clone().set(
    learning_rate=LEARNING_RATE, lr_schedule=SCHEDULE, **kwargs
  )
  return config.Instantiate().get_grad_transformation(hparams())


def run(tx, params, steps=STEPS):
  """Returns (variables, state) after some steps."""

  def one(carry, step):
    params, state = carry
    updates, state = tx.update(gradients(params, step), state, params)
    return (jax.tree.map(jnp.add, params, updates), state), None

  @jit
  def every(params):
    carry = (params, tx.init(params))
    return jax.lax.scan(one, carry, jnp.arange(steps))[0]

  return every(params)


def run_numpy(rule, params, steps=STEPS):
  """Like `run`, with rule(step, g, w, memory) -> update in numpy, per leaf."""
  leaves, tree = jax.tree.flatten(params)
  leaves = [np.asarray(w, np.float64) for w in leaves]
  memories = [{} for _ in leaves]
  for step in range(steps):
    grads = jax.tree.leaves(gradients(tree.unflatten(leaves), step))
    leaves = [
      w + rule(step, np.asarray(g, np.float64), w, memory)
      for g, w, memory in zip(grads, leaves, memories, strict=True)
    ]
  return tree.unflatten(leaves)


def assert_close(got, want, rtol=2e-4, atol=2e-5):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol),
    got,
    want,
  )
