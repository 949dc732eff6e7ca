# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Gradients of several batches make one update of another optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import optimizers, schedules
from praxis.optimizers import prefix_vectorization
from tests.praxis.optimizers import problem

Accumulator = optimizers.ShardedStaticAccumulator


def _config(use_cond):
  return Accumulator.config(
    optimizer_tpl=optimizers.Adam.config(
      learning_rate=0.1, lr_schedule=problem.SCHEDULE
    ),
    num_sub_batches=3,
    accumulation_use_cond_op=use_cond,
  )


@pytest.mark.parametrize('use_cond', [False, True])
def test_every_third_batch_updates_by_the_mean(use_cond):
  params = problem.variables()
  tx = _config(use_cond).Instantiate().get_grad_transformation()
  adam = optimizers.adam_transform(
    problem.lr,
    optimizers.AdamHyperparams(
      beta1=0.9, beta2=0.999, epsilon=1e-6, clip_threshold=1.0
    ),
  )
  update = problem.jit(tx.update)
  now, state, other = params, tx.init(params), adam.init(params)
  grads = []
  for step in range(6):
    grads.append(problem.gradients(params, step))
    updates, state = update(grads[-1], state, now)
    if step % 3 < 2:
      assert not any(np.any(u) for u in jax.tree.leaves(updates))
      continue
    mean = jax.tree.map(lambda *g: sum(g) / 3, *grads)
    want, other = problem.jit(adam.update)(mean, other, now)
    problem.assert_close(updates, want, rtol=1e-5)
    grads = []
  raw = state[2]
  assert (int(raw.count), int(raw.base_state.count)) == (0, 2)
  assert not np.any(raw.accumulated_update['params']['w'])


def test_it_accumulates_in_float32():
  params = {'w': jnp.ones([2], jnp.bfloat16)}
  sgd = optimizers.sharded_sgd(lambda count: jnp.float32(1.0), None)
  tx = optimizers.sharded_static_accumulation(2, sgd)
  state = tx.init(params)
  assert state.accumulated_update['w'].dtype == jnp.float32
  updates, state = tx.update({'w': jnp.full([2], 256.0, jnp.bfloat16)}, state)
  # In bfloat16 256 + 1 is 256.
  updates, state = tx.update(params, state)
  assert updates['w'].dtype == jnp.bfloat16
  np.testing.assert_array_equal(updates['w'], jnp.bfloat16(-128.5))


def test_stacked_layers_and_descriptions():
  hparams = {
    'w': problem.weight([2, 4], repeat_prefix=[3]),
    'b': problem.weight([4]),
  }
  make_tx = _config(False).Instantiate().get_grad_transformation
  vectorize = (
    prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
  )
  tx = vectorize(make_tx, hparams)
  params = jax.tree.map(lambda hp: jnp.ones(hp.full_shape), hparams)
  state = tx.init(params)
  specs = tx.init_partition_spec(hparams)
  assert jax.tree.structure(state) == jax.tree.structure(specs)
  jax.tree.map(
    lambda x, hp: np.testing.assert_equal(x.shape, tuple(hp.full_shape)),
    state,
    specs,
  )
  update = problem.jit(tx.update)
  for _ in range(6):
    updates, state = update(params, state, params)
  np.testing.assert_allclose(updates['w'], -problem.lr(1), rtol=1e-4)


def test_the_learning_rate_is_either_ones():
  inner = _config(False).Instantiate()
  assert inner.get_learning_rate(5) == problem.lr(5)
  outer = _config(False).set(
    learning_rate=0.5, lr_schedule=schedules.Constant.config()
  )
  assert outer.Instantiate().get_learning_rate(5) == 0.5


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match='optimizer_tpl is not set'):
    Accumulator.config().Instantiate()
  with pytest.raises(ValueError, match='at least 1, got 0'):
    _config(False).set(num_sub_batches=0).Instantiate()


def test_fields_of_the_inner_chain_are_ignored_with_a_warning(caplog):
  config = _config(False)
  config.Instantiate()
  assert not caplog.text
  config.optimizer_tpl.decoupled_weight_decay = 0.1
  config.optimizer_tpl.ema_decay = 0.9
  config.Instantiate()
  assert "{'decoupled_weight_decay': 0.1, 'ema_decay': 0.9}" in caplog.text
