# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Several optimizers in one learner, for disjoint variables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax import learners
from pax.learners import multi_optimizer
from praxis import base_layer, optimizers, schedules


def weight(*shape, **kwargs):
  return base_layer.WeightHParams(shape, dtype=jnp.float32, **kwargs)


def _hparams():
  return {
    'params': {
      'head': weight(2, 3),
      'lm': {'a': weight(3), 'b': weight(2, repeat_prefix=[4])},
    }
  }


def _variables():
  return jax.tree.map(lambda hp: jnp.full(hp.full_shape, 2.0), _hparams())


def _opt(cls, lr, **fields):
  return cls.config(
    learning_rate=lr, lr_schedule=schedules.Constant.config(), **fields
  )


def _config(**fields):
  config = learners.MultiOptimizerLearner.config(
    name='learner',
    loss_name='loss',
    optimizer=_opt(optimizers.Sgd, 0.1, clip_gradient_norm_to_value=1.0),
    auxiliary_optimizers=[
      _opt(optimizers.Adam, 0.01, clip_threshold=0.0),
      _opt(optimizers.Sgd, 0.5),
    ],
    auxiliary_regex=['params/head', 'params/lm/a'],
    auxiliary_names=['head', 'a'],
  )
  return config.set(**fields)


def _step(learner, grads):
  hparams, variables = _hparams(), _variables()
  state = learner.get_grad_tx(hparams).init(variables)
  with base_layer.JaxContext.new_context():
    updates, state = learner.update_states(
      grads, state, variables, hparams, step=0
    )
    new = learner.apply_gradient(variables, updates, hparams)
    summaries = {
      base_layer.trim_summary_type_from_key(key): float(value)
      for key, value in base_layer.all_global_summaries().items()
    }
  return new, state, summaries


def test_each_variable_moves_as_its_optimizer_says():
  grads = jax.tree.map(lambda w: jnp.full_like(w, 0.1), _variables())
  new, state, summaries = _step(_config().Instantiate(), grads)
  np.testing.assert_allclose(new['params']['head'], 2.0 - 0.01, rtol=1e-5)
  np.testing.assert_allclose(new['params']['lm']['a'], 2.0 - 0.05, rtol=1e-6)
  np.testing.assert_allclose(new['params']['lm']['b'], 2.0 - 0.01, rtol=1e-6)
  assert set(state) == {'no_prefix', 'p#4#i-1'}
  rates = {k: v for k, v in summaries.items() if 'lr' in k}
  np.testing.assert_allclose(
    [rates[f'learning/lr{n}'] for n in ('', '_main', '_head', '_a')],
    [0.1, 0.1, 0.01, 0.5],
    rtol=1e-6,
  )


def test_separate_scaling_clips_by_each_optimizers_limits():
  grads = jax.tree.map(lambda w: jnp.full_like(w, 4.0), _variables())
  learner = _config(apply_separate_scaling=True).Instantiate()
  new, _, summaries = _step(learner, grads)
  # `b` alone has the limit 1: eight elements of equal size.
  np.testing.assert_allclose(
    new['params']['lm']['b'], 2.0 - 0.1 / np.sqrt(8), rtol=1e-6
  )
  np.testing.assert_allclose(new['params']['lm']['a'], 2.0 - 2.0, atol=1e-6)
  np.testing.assert_allclose(
    summaries['learning/main/grad_scale'], 1 / (4 * np.sqrt(8)), rtol=1e-5
  )
  assert summaries['learning/a/grad_scale'] == 1.0


def test_separate_scaling_checks_the_norm_of_each_optimizer():
  grads = jax.tree.map(lambda w: jnp.full_like(w, 4.0), _variables())
  # Norms: main 4 * sqrt(8), head 4 * sqrt(6), a 4 * sqrt(3).
  for limit, is_valid in ((12.0, True), (11.0, False)):
    learner = _config(
      apply_separate_scaling=True, skip_step_gradient_norm_value=limit
    ).Instantiate()
    _, _, summaries = _step(learner, grads)
    assert summaries['learning/is_valid_step'] == float(is_valid)
    assert learner.is_applied(grads, _hparams()) == is_valid
    assert summaries['learning/main/is_valid_step'] == float(is_valid)
    assert summaries['learning/a/is_valid_step'] == 1.0
    assert summaries['learning/is_finite_gradient'] == 1.0


def test_the_average_is_of_all_variables():
  config = _config()
  config.optimizer.ema_decay = 0.99
  grads = jax.tree.map(jnp.zeros_like, _variables())
  _, state, _ = _step(config.Instantiate(), grads)
  ema = state['no_prefix'][0].ema['params']
  np.testing.assert_array_equal(ema['head'], 2.0)
  np.testing.assert_array_equal(ema['lm']['a'], 2.0)


def test_descriptions_match_the_state():
  tx = _config().Instantiate().get_grad_tx(_hparams())
  state, specs = tx.init(_variables()), tx.init_partition_spec(_hparams())
  assert jax.tree.structure(state) == jax.tree.structure(specs)


def test_groups_are_named_as_the_learner_says():
  made = _config(repeat_prefix_sep='_').Instantiate()
  state = made.get_grad_tx(_hparams()).init(_variables())
  assert set(state) == {'no_prefix', 'p_4_i-1'}
  single = {'params': {'head': weight(2, 3)}}
  forced = _config(force_repeat_prefix_structure=True).Instantiate()
  state = forced.get_grad_tx(single).init(
    {'params': {'head': jnp.ones([2, 3])}}
  )
  assert set(state) == {'no_prefix'}


def test_lists_of_different_length_are_refused():
  with pytest.raises(ValueError, match="'auxiliary_names': 1"):
    _config(auxiliary_names=['head']).Instantiate()


def test_an_auxiliary_transformation_of_optax_is_refused():
  with pytest.raises(ValueError, match='auxiliary_optimizers must .*Optax'):
    _config(auxiliary_optimizers=[optax.sgd(0.1)] * 2).Instantiate()


@pytest.mark.parametrize('names', [['head', 'head'], ['head', 'main']])
def test_equal_names_are_refused(names):
  with pytest.raises(ValueError, match="must differ .* got \\['head', "):
    _config(auxiliary_names=names).Instantiate()


def test_an_auxiliary_optimizer_has_no_average_of_its_own():
  config = _config()
  config.optimizer.ema_decay = 0.9
  config.auxiliary_optimizers[0].ema_decay = 0.9
  config.Instantiate()
  config.auxiliary_optimizers[1].ema_decay = 0.5
  with pytest.raises(ValueError, match="'a' must be 0 or that of .*, 0.9, got"):
    config.Instantiate()


def test_an_expression_that_matches_nothing_is_logged(monkeypatch):
  logged = []
  # Else one of the other tests may have used the only message of a process.
  monkeypatch.setattr(
    multi_optimizer.logging,
    'log_first_n',
    lambda level, text, n, *args: logged.append(text % args),
  )
  _config().Instantiate().get_grad_tx(_hparams())
  excluding = _config(bprop_variable_exclusion='params/head').Instantiate()
  excluding.get_grad_tx(_hparams())
  assert not logged
  learner = _config(auxiliary_regex=['params/head', 'lm/a']).Instantiate()
  learner.get_grad_tx(_hparams())
  (text,) = logged
  assert "['lm/a'], which match no variable" in text and 'params/head' in text


def test_a_variable_with_two_owners_is_refused():
  learner = _config(auxiliary_regex=['params/', 'params/lm/a']).Instantiate()
  with pytest.raises(ValueError, match='params/lm/a matches'):
    learner.get_masks(_hparams())


def test_overwritten_variables_take_their_gradient():
  hparams = _hparams()
  flag = base_layer.WeightHParamsCollection.OVERWRITE_WITH_GRADIENT
  hparams['params']['head'] = weight(2, 3, collections=[flag])
  hparams['params']['lm']['b'] = weight(4, 2, collections=[flag])
  variables = _variables()
  grads = jax.tree.map(lambda x: 7.0 * jnp.ones_like(x), variables)
  learner = _config(apply_separate_scaling=True).Instantiate()
  state = learner.get_grad_tx(hparams).init(variables)
  with base_layer.JaxContext.new_context():
    updates, _ = learner.update_states(grads, state, variables, hparams, step=0)
    new = learner.apply_gradient(variables, updates, hparams)['params']
  # One is of an auxiliary optimizer, the other one of the main one.
  np.testing.assert_array_equal(new['head'], 7.0)
  np.testing.assert_array_equal(new['lm']['b'], 7.0)
  assert np.all(np.asarray(new['lm']['a']) < 2.0)
