# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Each update rule against Optax or a numpy twin, for twenty steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from praxis import optimizers, schedules
from tests.praxis.layers import running
from tests.praxis.optimizers import problem

# Same formula, so only rounding may differ.
OPTAX_TWINS = {
  'adam': (
    optimizers.Adam.config(clip_threshold=-1.0, epsilon=1e-7),
    lambda lr: optax.adam(lr, eps=1e-7),
  ),
  'adam_epsilon_root': (
    optimizers.Adam.config(clip_threshold=0.0, epsilon_root=1e-3, beta2=0.9),
    lambda lr: optax.adam(lr, eps=1e-6, eps_root=1e-3, b2=0.9),
  ),
  'adam_weight_decay': (
    optimizers.Adam.config(clip_threshold=0.0, weight_decay=0.1),
    lambda lr: optax.adamw(lr, eps=1e-6, weight_decay=0.1),
  ),
  'adam_optax_state': (
    # Neither clips nor decays.
    optimizers.Adam.config(
      clip_threshold=0.1, weight_decay=0.1, sharded_adam=False
    ),
    lambda lr: optax.adam(lr, eps=1e-6),
  ),
  'adam_a': (
    optimizers.Adam.HParamsA(clip_threshold=0.0),
    lambda lr: optax.adam(lr, b2=0.997, eps=1e-9),
  ),
  'adam_b': (
    optimizers.Adam.HParamsB(clip_threshold=0.0),
    lambda lr: optax.adam(lr, b2=0.98, eps=1e-9),
  ),
  'sgd': (optimizers.Sgd.config(), optax.sgd),
  'sgd_momentum': (
    optimizers.ShardedSgd.config(momentum=0.9),
    lambda lr: optax.sgd(lr, momentum=0.9),
  ),
  'sgd_nesterov': (
    optimizers.Sgd.config(momentum=0.9, nesterov=True),
    lambda lr: optax.sgd(lr, momentum=0.9, nesterov=True),
  ),
  'adagrad': (
    optimizers.Adagrad.config(),
    lambda lr: optax.adagrad(lr, 0.1, 1e-10),
  ),
  'sharded_adagrad': (
    optimizers.ShardedAdagrad.config(),
    lambda lr: optax.adagrad(lr, 1e-12, 1e-12),
  ),
  'lion': (
    optimizers.Lion.config(
      clip_threshold=0.0, weight_decay=0.1, m_dtype=jnp.float32
    ),
    lambda lr: optax.lion(lr, b1=0.9, b2=0.99, weight_decay=0.1),
  ),
  'lamb': (optimizers.Lamb.config(), optax.lamb),
  'lars': (optimizers.Lars.config(), optax.lars),
  'adafactor': (
    optimizers.Adafactor.config(min_dim_size_to_factor=4),
    lambda lr: optax.adafactor(lr, min_dim_size_to_factor=4),
  ),
  'optax': (
    optimizers.OptaxOptimizer.config(grad_tx=optax.rmsprop(0.01)),
    lambda lr: optax.rmsprop(0.01),
  ),
}


@pytest.mark.parametrize('name', OPTAX_TWINS)
def test_same_as_optax(name):
  config, twin = OPTAX_TWINS[name]
  params = problem.variables()
  got, _ = problem.run(problem.tx_of(config), params)
  want, _ = problem.run(twin(problem.lr), params)
  problem.assert_close(got, want)


def test_adam_clips_the_rms_of_each_update_before_the_decay():
  b1, b2, eps, clip, decay = 0.9, 0.95, 1e-3, 0.5, 0.01
  config = optimizers.Adam.config(
    beta1=b1, beta2=b2, epsilon=eps, clip_threshold=clip, weight_decay=decay
  )

  def rule(step, g, w, memory):
    t = step + 1
    memory['m'] = b1 * memory.get('m', 0.0) + (1 - b1) * g
    memory['v'] = b2 * memory.get('v', 0.0) + (1 - b2) * g * g
    m, v = memory['m'] / (1 - b1**t), memory['v'] / (1 - b2**t)
    u = m / (np.sqrt(v) + eps)
    u = u / max(1.0, np.sqrt(np.mean(u * u)) / clip)
    return -float(problem.lr(step)) * (u + decay * w)

  params = problem.variables()
  got, state = problem.run(problem.tx_of(config), params)
  problem.assert_close(got, problem.run_numpy(rule, params))
  assert set(state[2]) == {'count', 'm', 'v'}
  assert int(state[2].count) == problem.STEPS


def test_lion_keeps_its_momentum_in_bfloat16_and_clips():
  params = problem.variables()
  tx = problem.tx_of(optimizers.Lion.config(clip_threshold=0.25))
  update = running.jit(tx.update)
  _, state = update(problem.gradients(params, 0), tx.init(params), params)
  updates, state = update(problem.gradients(params, 1), state, params)
  assert state[2].m['params']['w'].dtype == jnp.bfloat16
  u = np.abs(updates['params']['w'])
  np.testing.assert_allclose(u, 0.25 * problem.lr(1), rtol=1e-6)


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Adam.config(),
    optimizers.ShardedAdafactor.HParamsAdamB(quantized_dtype='float32'),
  ],
)
def test_an_infinite_gradient_becomes_nan(config):
  params = problem.variables()
  tx = problem.tx_of(config)
  grads = jax.tree.map(np.copy, params)
  grads['params']['w'][0, 0] = np.inf
  updates, _ = running.jit(tx.update)(grads, tx.init(params), params)
  assert np.isnan(updates['params']['w'][0, 0])


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Adam.config(ema_decay=0.9, ewc_regularizer_weight=0.1),
    optimizers.ShardedAdafactor.HParamsAdamB(),
    optimizers.DistributedShampoo.config(block_size=4),
    optimizers.ShardedStaticAccumulator.config(
      optimizer_tpl=optimizers.Lion.config(), num_sub_batches=2
    ),
  ],
)
def test_no_two_arrays_of_a_state_share_memory(config):
  params = jax.tree.map(jnp.asarray, problem.variables())
  arrays = jax.tree.leaves((params, problem.tx_of(config).init(params)))
  where = [x.unsafe_buffer_pointer() for x in arrays]
  assert len(set(where)) == len(where)


def test_functions_make_what_the_classes_do():
  params = problem.variables()
  lr = problem.lr
  pairs = [
    (
      optimizers.sharded_adam(lr, 0.9, 0.99, 1e-5, 1e-4, 0.5, 0.1),
      optimizers.Adam.config(
        beta2=0.99,
        epsilon=1e-5,
        epsilon_root=1e-4,
        clip_threshold=0.5,
        weight_decay=0.1,
      ),
    ),
    (
      optimizers.sharded_lion(lr, 0.8, 0.9, jnp.float32, 0.5, 0.1),
      optimizers.Lion.config(
        beta1=0.8,
        beta2=0.9,
        m_dtype=jnp.float32,
        clip_threshold=0.5,
        weight_decay=0.1,
      ),
    ),
    (
      optimizers.sharded_adafactor(
        lr, decay_method='pow', decay_pow=0.8, quantized_dtype=jnp.int8
      ),
      optimizers.ShardedAdafactor.config(decay_method='pow', decay_pow=0.8),
    ),
  ]
  grads = problem.gradients(params, 1)
  for tx, config in pairs:
    both = tx, problem.tx_of(config)
    got, want = running.jit(
      lambda grads: [x.update(grads, x.init(params), params)[0] for x in both]  # noqa: B023
    )(grads)
    problem.assert_close(got, want, rtol=1e-6)


def test_decay_rates_and_means_by_hand():
  adam = [float(optimizers.adafactor_decay_rate_adam(0.9, t)) for t in (0, 1)]
  np.testing.assert_allclose(adam, [0.0, 0.9 * 0.1 / 0.19], rtol=1e-5)
  power = float(optimizers.adafactor_decay_rate_pow(0.5, 3))
  np.testing.assert_allclose(power, 1 - 4**-0.5, rtol=1e-6)
  x = jnp.array([[3.0, 4.0]], jnp.bfloat16)
  assert float(optimizers.reduce_mean(x)) == 3.5
  np.testing.assert_allclose(optimizers.reduce_rms(x), 12.5**0.5, rtol=1e-6)
  # More elements than an int32 counts, as the weights of LmCloudSpmd1024B have.
  large = jax.ShapeDtypeStruct((1 << 16, 1 << 16), jnp.float32)
  assert jax.eval_shape(optimizers.reduce_rms, large).shape == ()


def test_an_optimizer_without_schedule_says_how_to_get_one():
  adam = optimizers.Adam.config(learning_rate=0.1).Instantiate()
  with pytest.raises(ValueError, match='schedules.Constant'):
    adam.get_learning_rate(0)


def test_optax_optimizer_needs_a_transformation():
  with pytest.raises(ValueError, match='grad_tx is not set'):
    optimizers.OptaxOptimizer.config().Instantiate()


def test_moments_have_the_dtype_of_their_variable():
  params = {'w': jnp.ones([4], jnp.bfloat16)}
  tx = optimizers.sharded_adam(
    lambda count: jnp.float32(0.1), 0.9, 0.99, 1e-6, 0.0, 0.0, 0.0
  )
  updates, state = tx.update(params, tx.init(params), params)
  assert updates['w'].dtype == jnp.bfloat16
  assert state.m['w'].dtype == state.v['w'].dtype == jnp.bfloat16


class _SignSgd(optimizers.BaseOptimizer):
  """The documented way to write an optimizer: a hook with one argument."""

  def _get_raw_grad_transformation(self, lr):
    return optax.chain(
      optax.stateless(lambda grads, _: jax.tree.map(jnp.sign, grads)),
      optax.scale_by_learning_rate(lr),
    )


def test_an_optimizer_defines_its_rule_with_one_argument():
  config = _SignSgd.config(
    learning_rate=0.5, lr_schedule=schedules.Constant.config(value=1.0)
  )
  tx = config.Instantiate().get_grad_transformation(problem.hparams())
  params = problem.variables()
  grads = jax.tree.map(lambda w: -3.0 * jnp.ones_like(w), params)
  updates, _ = tx.update(grads, tx.init(params), params)
  for update in jax.tree.leaves(updates):
    np.testing.assert_array_equal(update, np.full(update.shape, 0.5))


def test_an_optimizer_wraps_the_rule_of_its_base():
  class Doubled(optimizers.ShardedAdafactor):
    def _get_raw_grad_transformation(self, lr):
      return super()._get_raw_grad_transformation(lambda step: 2 * lr(step))

  fields = {
    'learning_rate': 0.1,
    'lr_schedule': schedules.Constant.config(value=1.0),
    'decay_method': 'pow',
    'decay_pow': 0.8,
    'respect_skip_lp_regularization': True,
  }
  params = problem.variables()
  grads = jax.tree.map(jnp.ones_like, params)
  updates = []
  for cls in (optimizers.ShardedAdafactor, Doubled):
    optimizer = cls.config(**fields).Instantiate()
    tx = optimizer.get_grad_transformation(problem.hparams())
    updates.append(tx.update(grads, tx.init(params), params)[0])
  doubled = jax.tree.map(lambda u: 2 * u, updates[0])
  jax.tree.map(np.testing.assert_array_equal, updates[1], doubled)


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Adam.config(),
    optimizers.ShardedAdafactor.HParamsAdamB(),
    optimizers.ShardedAdafactor.config(
      decay_method='pow', decay_pow=0.8, per_var_learning_summary=True
    ),
    optimizers.DistributedShampoo.config(),
    optimizers.DistributedShampoo.config(
      best_effort_memory_usage_reduction=True
    ),
  ],
)
def test_a_variable_without_elements_has_a_finite_state(config):
  params = {'w': jnp.ones([2]), 'no_columns': jnp.ones([4, 0])}
  tx = config.Instantiate()._update_rule(lambda count: jnp.float32(0.1), None)
  updates, state = running.jit(
    lambda params: tx.update(params, tx.init(params), params)
  )(params)
  assert updates['no_columns'].shape == (4, 0)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((updates, state)))
