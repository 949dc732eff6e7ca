# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Regularizers, decay, consolidation and averaging, each by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from praxis import optimizers, schedules, value_domains
from praxis.optimizers import regularization
from tests.praxis.optimizers import problem

Sgd = optimizers.Sgd


def _one_update(config, params, grads, **kwargs):
  tx = problem.tx_of(config, **kwargs)
  state = jax.tree.map(
    lambda x: x + 6 if x.dtype == jnp.int32 else x, tx.init(params)
  )
  return tx.update(grads, state, params)


@pytest.mark.parametrize(
  'field, slope',
  [('l1_regularizer_weight', np.sign), ('l2_regularizer_weight', lambda w: w)],
)
@pytest.mark.parametrize('skip_1d', [False, True])
def test_regularizers_add_to_the_gradient(field, slope, skip_1d):
  params = problem.variables()
  grads = problem.gradients(params, 0)
  updates, _ = _one_update(
    Sgd.config(), params, grads, skip_lp_1d_vectors=skip_1d, **{field: 0.3}
  )
  regularized = {'w': True, 'b': not skip_1d, 'skipped': False}
  for name, flag in regularized.items():
    w, g = params['params'][name], np.asarray(grads['params'][name])
    want = -problem.lr(6) * (g + 0.3 * slope(w) * flag)
    np.testing.assert_allclose(updates['params'][name], want, rtol=1e-5)


def test_decoupled_decay_is_outside_of_the_momentum():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = _one_update(
    optimizers.Adam.config(), params, zeros, decoupled_weight_decay=0.3
  )
  w = updates['params']['w']
  np.testing.assert_allclose(
    w, -problem.lr(6) * 0.3 * params['params']['w'], rtol=1e-5
  )
  np.testing.assert_array_equal(updates['params']['skipped'], 0.0)


def test_average_is_of_the_variables_after_each_step():
  params = problem.variables()
  tx = problem.tx_of(Sgd.config(), ema_decay=0.3)
  state, average, now = tx.init(params), params, params
  for step in range(4):
    decay = min(0.3, (1 + step) / (10 + step))
    average = jax.tree.map(
      lambda a, w, d=decay: d * a + (1 - d) * w, average, now
    )
    updates, state = tx.update(problem.gradients(now, step), state, now)
    now = jax.tree.map(jnp.add, now, updates)
  problem.assert_close(state[4].ema, average)
  assert int(state[4].count) == 4


def test_average_copies_integers_and_starts_at_the_variables():
  tx = regularization.apply_ema_weights(0.99)
  params = {'n': jnp.array([1, 2]), 'w': jnp.array([1.0])}
  state = tx.init(params)
  np.testing.assert_array_equal(state.ema['w'], [1.0])
  updates = {'n': jnp.array([0, 0]), 'w': jnp.array([1.0])}
  moved = {'n': jnp.array([5, 6]), 'w': jnp.array([2.0])}
  _, state = tx.update(updates, state, moved)
  np.testing.assert_array_equal(state.ema['n'], [5, 6])
  # (1 + 0) / (10 + 0) of the average 1 and the rest of the variable 2, as it is
  # before the update.
  np.testing.assert_allclose(state.ema['w'], [0.1 * 1 + 0.9 * 2], rtol=1e-6)


def test_average_can_be_left_out():
  sgd = Sgd.config(ema_decay=0.9).Instantiate()
  params = problem.variables()
  tx = sgd.get_grad_transformation(problem.hparams(), include_ema=False)
  assert len(tx.init(params)) == 4


def test_consolidation_pulls_back_to_the_start():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  tx = problem.tx_of(Sgd.config(), ewc_regularizer_weight=0.5)
  # The variables of the first step, not those of init, are the start.
  state = tx.init(zeros)
  for _ in range(6):
    _, state = tx.update(zeros, state, params)
  moved = jax.tree.map(lambda w: w + 2.0, params)
  updates, _ = tx.update(zeros, state, moved)
  want = -problem.lr(6) * 0.5 / 2 * 2.0
  np.testing.assert_allclose(updates['params']['w'], want, rtol=1e-4)


def test_the_chain_has_the_same_four_places_whatever_is_on():
  params = problem.variables()
  for fields in ({}, {'l2_regularizer_weight': 0.1}):
    state = problem.tx_of(Sgd.config(), **fields).init(params)
    regularizers = (*state[:2], state[3])
    assert [set(s) for s in regularizers] == [{'count'}] * 3
    assert len(jax.tree.leaves(state[2])) == 1


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      dict(l1_regularizer_weight=0.1, l2_regularizer_weight=0.1),
      'l1_regularizer_weight and l2_regularizer_weight exclude',
    ),
    (
      dict(decoupled_weight_decay=0.1, l2_regularizer_weight=0.1),
      'decoupled_weight_decay excludes l1_ and l2_',
    ),
    (dict(ema_decay=1.0), 'ema_decay must be in'),
  ],
)
def test_contradictions_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    Sgd.config(**fields).Instantiate()


def test_the_decay_has_its_own_mask():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = _one_update(
    Sgd.config(),
    params,
    zeros,
    decoupled_weight_decay=0.3,
    skip_lp_1d_vectors=True,
  )
  want = -problem.lr(6) * 0.3 * params['params']['b']
  np.testing.assert_allclose(updates['params']['b'], want, rtol=1e-5)


def test_weights_of_the_decay_by_path():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  # The last expression that matches counts, at the start of a path.
  weights = {'.*/b': 0.9, '.*': 0.3, 'params/b$': 0.1, 'arams/w': 0.7}
  updates, _ = _one_update(
    optimizers.Adam.config(), params, zeros, decoupled_weight_decay=weights
  )
  for name, weight in {'w': 0.3, 'b': 0.1, 'skipped': 0.0}.items():
    want = -problem.lr(6) * weight * params['params'][name]
    np.testing.assert_allclose(updates['params'][name], want, rtol=1e-5)


def test_a_variable_without_a_weight_by_path_does_not_decay():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = _one_update(
    Sgd.config(), params, zeros, decoupled_weight_decay={'.*/b': 0.9}
  )
  np.testing.assert_array_equal(updates['params']['w'], 0.0)


@pytest.mark.parametrize('weights', [{'(': 0.1}, {'.*': 'a'}, {3: 0.1}])
def test_wrong_weights_by_path_are_refused(weights):
  domains = {f.name: domain for f, domain in value_domains.domains_of(Sgd)}
  domain = domains['decoupled_weight_decay']
  assert not domain.contains(weights)
  assert domain.contains({'.*': 0.1, '.*/b$': 0}) and domain.contains(None)
  assert domain.text == (
    'a finite number, or a dict of regular expressions to such, or None'
  )


def test_without_descriptions_every_variable_is_regularized():
  params = problem.variables()
  zeros = jax.tree.map(jnp.zeros_like, params)
  sgd = Sgd.config(
    l2_regularizer_weight=0.1,
    learning_rate=2.0,
    lr_schedule=schedules.Constant.config(),
  ).Instantiate()
  tx = sgd.get_grad_transformation()
  updates, _ = tx.update(zeros, tx.init(params), params)
  want = jax.tree.map(lambda w: -0.2 * w, params)
  problem.assert_close(updates, want, rtol=1e-5)


def test_upstreams_functions_can_be_plain_optax():
  lr = problem.lr
  params = problem.variables()
  grads = problem.gradients(params, 0)
  made = [
    regularization.apply_lp_regularizer(None, 0.1, p=1.0),
    regularization.apply_decoupled_weight_decay(lr, None, 0.1),
    regularization.apply_ema_weights(0.9),
    regularization.apply_ewc_regularization(lr, 0.1),
  ]
  plain = [
    regularization.apply_lp_regularizer(
      None, 0.1, p=1.0, use_optax_gradient_transformations=True
    ),
    regularization.apply_decoupled_weight_decay(lr, None, 0.1, True),
    regularization.apply_ema_weights(0.9, True),
    regularization.apply_ewc_regularization(lr, 0.1, None, True),
  ]
  chain, twin = optimizers.sharded_chain(*made), optax.chain(*plain)
  want = chain.update(grads, chain.init(params), params)
  problem.assert_close(twin.update(grads, twin.init(params), params), want)


def test_a_transformation_of_a_user_joins_a_chain():
  scale = optax.scale(-0.5)
  # By position, as libraries for upstream construct it.
  sharded = optimizers.ShardedGradientTransformation(
    scale.init, scale.update, lambda hparams: optax.EmptyState()
  )
  params = problem.variables()
  tx = optimizers.sharded_chain(sharded, optax.scale(2.0))
  updates, _ = tx.update(params, tx.init(params), params)
  problem.assert_close(updates, jax.tree.map(lambda w: -w, params))


def test_a_regularizer_needs_the_variables():
  params = problem.variables()
  tx = problem.tx_of(Sgd.config(), l2_regularizer_weight=0.1)
  with pytest.raises(ValueError, match='needs the variables'):
    tx.update(params, tx.init(params))


def test_a_state_of_another_chain_is_refused():
  params = problem.variables()
  tx = problem.tx_of(Sgd.config(), ema_decay=0.9)
  state = problem.tx_of(Sgd.config()).init(params)
  with pytest.raises(ValueError, match='chain of 5 transformations'):
    tx.update(params, state, params)


def test_a_mask_can_be_a_function():
  params = problem.variables()
  sgd = optimizers.sharded_sgd(problem.lr, None)
  by_rank = optimizers.sharded_masked(
    sgd, lambda tree: jax.tree.map(lambda x: len(x.shape) > 1, tree)
  )
  grads = problem.gradients(params, 0)
  state = jax.tree.map(lambda count: count + 3, by_rank.init(params))
  updates, _ = by_rank.update(grads, state, params)
  np.testing.assert_array_equal(updates['params']['b'], grads['params']['b'])
  want = -problem.lr(3) * grads['params']['w']
  np.testing.assert_allclose(updates['params']['w'], want, rtol=1e-6)
  specs = by_rank.init_partition_spec(problem.hparams())
  assert jax.tree.structure(specs) == jax.tree.structure(state)


def test_a_masked_state_is_that_of_optax():
  params = problem.variables()
  mask = jax.tree.map(lambda x: len(x.shape) > 1, params)
  state = optimizers.sharded_masked(optax.sgd(0.1, 0.9), mask).init(params)
  theirs = optax.masked(optax.sgd(0.1, 0.9), mask).init(params)
  assert type(state) is type(theirs)
  assert jax.tree.leaves(state)[0].shape == jax.tree.leaves(theirs)[0].shape


def test_declarations_of_arrays_are_the_arrays():
  tx = optimizers.sharded_sgd(problem.lr, 0.9)
  params = problem.variables()
  specs = optimizers.partition_params(tx, params, tx.init(params))
  leaves = {id(leaf) for leaf in jax.tree.leaves(specs)}
  assert {id(leaf) for leaf in jax.tree.leaves(params)} <= leaves


@pytest.mark.parametrize('momentum', [None, 0.9])
def test_sgd_has_the_state_of_optax(momentum):
  params = problem.variables()
  ours = optimizers.sharded_sgd(problem.lr, momentum).init(params)
  theirs = optax.sgd(problem.lr, momentum).init(params)
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)


def test_adagrad_has_the_state_of_optax():
  params = problem.variables()
  ours = optimizers.sharded_adagrad(problem.lr, 0.1, 1e-7).init(params)
  theirs = optax.adagrad(problem.lr).init(params)
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
