# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Clipping, skipped steps, variable masks and updates of a learner."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax import learners
from praxis import base_layer, optimizers, pax_fiddle, py_utils, schedules

Flags = base_layer.WeightHParamsCollection
NONE = learners.BpropMaskedNode()
LR = 0.5


def _weight(shape, *flags, **kwargs):
  return base_layer.WeightHParams(
    shape, dtype=jnp.float32, collections=list(flags), **kwargs
  )


def _hparams():
  return {
    'params': {
      'lm': {'w': _weight([2, 3]), 'b': _weight([3])},
      'head': {'w': _weight([3, 2])},
    },
    'non_trainable': {'mean': _weight([3], Flags.NON_TRAINABLE)},
  }


def _variables():
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda hp: jnp.asarray(rng.normal(size=hp.full_shape), jnp.float32),
    _hparams(),
  )


def _learner(optimizer=None, cls=learners.Learner, opt_fields=None, **fields):
  if optimizer is None:
    optimizer = optimizers.Sgd.config()
  optimizer = optimizer.clone().set(
    learning_rate=LR,
    lr_schedule=schedules.Constant.config(),
    **(opt_fields or {}),
  )
  return cls.config(
    name='learner', loss_name='total_loss', optimizer=optimizer, **fields
  ).Instantiate()


def _step(learner, grads, variables, hparams=None, state=None):
  """Returns (variables, state, summaries) after one update."""
  hparams = hparams or _hparams()
  if state is None:
    state = learner.get_grad_tx(hparams).init(variables)
  with base_layer.JaxContext.new_context():
    updates, state = learner.update_states(
      grads, state, variables, hparams, step=0
    )
    variables = learner.apply_gradient(variables, updates, hparams)
    summaries = {
      base_layer.trim_summary_type_from_key(key): value
      for key, value in base_layer.all_global_summaries().items()
    }
  return variables, state, summaries


def _norm(tree):
  return float(optax.tree.norm(tree))


def test_plain_descent_and_its_summaries():
  variables = _variables()
  grads = jax.tree.map(lambda w: w * 0.1, variables)
  new, _, summaries = _step(_learner(), grads, variables)
  np.testing.assert_allclose(
    new['params']['lm']['w'], 0.95 * variables['params']['lm']['w'], rtol=1e-6
  )
  # What is not trainable stays, whatever its gradient.
  np.testing.assert_array_equal(
    new['non_trainable']['mean'], variables['non_trainable']['mean']
  )
  norm = _norm(grads['params'])
  expected = {
    'learning/raw_grad_norm': norm,
    'learning/clipped_grad_norm': norm,
    'learning/grad_scale': 1.0,
    'learning/is_valid_step': 1.0,
    'learning/applied_grad_norm': LR * norm,
    'learning/var_norm': _norm(variables['params']),
    'learning/skipped_steps': 0.0,
    'learning/lr': LR,
    'lr': LR,
  }
  assert set(summaries) == set(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(summaries[name], value, rtol=1e-5, err_msg=name)


def test_global_clipping_scales_all_gradients_alike():
  variables = _variables()
  grads = jax.tree.map(lambda w: w * 100.0, variables)
  learner = _learner(opt_fields={'clip_gradient_norm_to_value': 2.0})
  new, _, summaries = _step(learner, grads, variables)
  moved = jax.tree.map(jnp.subtract, new['params'], variables['params'])
  np.testing.assert_allclose(_norm(moved), LR * 2.0, rtol=1e-5)
  np.testing.assert_allclose(
    summaries['learning/grad_scale'], 2.0 / _norm(grads['params']), rtol=1e-5
  )
  np.testing.assert_allclose(
    summaries['learning/clipped_grad_norm'], 2.0, rtol=1e-5
  )


def test_single_clipping_limits_each_gradient():
  variables = _variables()
  grads = jax.tree.map(jnp.copy, variables)
  grads['params']['head']['w'] *= 1e-2
  learner = _learner(opt_fields={'clip_gradient_single_norm_to_value': 0.1})
  new, _, summaries = _step(learner, grads, variables)
  moved = jax.tree.map(jnp.subtract, new['params'], variables['params'])
  np.testing.assert_allclose(_norm(moved['lm']['w']), LR * 0.1, rtol=1e-5)
  np.testing.assert_allclose(
    moved['head']['w'], -LR * grads['params']['head']['w'], rtol=1e-4
  )
  np.testing.assert_allclose(
    summaries['learning/clipped_grad_norm'], _norm(moved) / LR, rtol=1e-5
  )
  # The gradients have no common factor.
  assert summaries['learning/grad_scale'] == 1.0


def test_both_ways_of_clipping_exclude_each_other():
  both = {
    'clip_gradient_norm_to_value': 1.0,
    'clip_gradient_single_norm_to_value': 1.0,
  }
  variables = _variables()
  with pytest.raises(ValueError, match='exclude each other'):
    _step(_learner(opt_fields=both), variables, variables)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_step_with_a_bad_gradient_changes_nothing(bad):
  variables = _variables()
  learner = _learner(
    optimizers.Adam.config(),
    opt_fields={'clip_gradient_norm_to_value': 1.0, 'ema_decay': 0.9},
  )
  good = jax.tree.map(lambda w: w * 0.1, variables)
  variables, state, summaries = _step(learner, good, variables)
  assert summaries['learning/skipped_steps'] == 0.0
  grads = jax.tree.map(jnp.copy, good)
  grads['params']['lm']['b'] = grads['params']['lm']['b'].at[1].set(bad)
  new, new_state, summaries = _step(learner, grads, variables, state=state)
  jax.tree.map(np.testing.assert_array_equal, new, variables)
  jax.tree.map(np.testing.assert_array_equal, new_state, state)
  assert summaries['learning/is_valid_step'] == 0.0
  assert summaries['learning/applied_grad_norm'] == 0.0
  # The optimizer has made one step of two.
  with base_layer.JaxContext.new_context():
    learner.update_states(good, new_state, variables, _hparams(), step=2)
    recorded = {
      base_layer.trim_summary_type_from_key(key): value
      for key, value in base_layer.all_global_summaries().items()
    }
  assert recorded['learning/skipped_steps'] == 1.0


@pytest.mark.parametrize('bad', [None, np.nan])
def test_accelerators_choose_by_element_with_the_same_result(bad):
  variables = _variables()
  learner = _learner(
    optimizers.Adam.config(),
    opt_fields={'clip_gradient_norm_to_value': 1.0, 'ema_decay': 0.9},
  )
  grads = jax.tree.map(lambda w: w * 0.1, variables)
  _, state, _ = _step(learner, grads, variables)
  if bad is not None:
    grads['params']['lm']['b'] = grads['params']['lm']['b'].at[1].set(bad)

  def run(platform):
    # Operation by operation, as compilers differ in how they fuse them.
    with py_utils.tracing_for(platform), jax.disable_jit():
      return _step(learner, grads, variables, state=state)

  branched = run('cpu')
  jax.tree.map(np.testing.assert_array_equal, run('tpu'), branched)
  skipped = np.array_equal(
    branched[0]['params']['lm']['w'], variables['params']['lm']['w']
  )
  assert skipped == (bad is not None)


def test_accelerators_have_no_branch_that_holds_old_and_new_state():
  variables = _variables()
  learner = _learner(optimizers.Adam.config())
  state = learner.get_grad_tx(_hparams()).init(variables)

  def text(platform):
    with py_utils.tracing_for(platform):
      return str(
        jax.make_jaxpr(lambda g: _step(learner, g, variables, state=state))(
          variables
        )
      )

  assert ' cond[' in text('cpu')
  assert ' cond[' not in text('tpu') and ' cond[' not in text('gpu')


def test_a_large_norm_skips_the_step():
  variables = _variables()
  norm = _norm(variables['params'])
  for limit, skipped in ((norm * 0.99, True), (norm * 1.01, False)):
    learner = _learner(skip_step_gradient_norm_value=limit)
    new, _, summaries = _step(learner, variables, variables)
    same = np.array_equal(
      new['params']['lm']['w'], variables['params']['lm']['w']
    )
    assert same == skipped
    assert summaries['learning/is_valid_step'] == float(not skipped)
    assert summaries['learning/is_finite_gradient'] == 1.0
  _, _, summaries = _step(
    learner, jax.tree.map(lambda w: w * np.nan, variables), variables
  )
  assert summaries['learning/is_finite_gradient'] == 0.0


@pytest.mark.parametrize(
  'opt_fields, fields, averaged',
  [
    ({}, {}, set()),
    ({'ema_decay': 0.9}, {}, {'head', 'lm', 'mean'}),
    (
      {'ema_decay': 0.9},
      {'bprop_variable_exclusion': 'params/head/w'},
      {'lm', 'mean'},
    ),
    (
      {'ema_decay': 0.9},
      {'bprop_variable_exclusion': ['params/head/w', '.*/mean']},
      {'lm'},
    ),
    (
      {'ema_decay': 0.9},
      {
        'bprop_variable_exclusion': 'params/head/w',
        'keep_optimizer_state_for_excluded_vars': True,
      },
      {'head', 'lm', 'mean'},
    ),
  ],
)
def test_averages_of_non_trainable_variables(opt_fields, fields, averaged):
  learner = _learner(
    optimizers.Adam.config(decoupled_weight_decay=0.1),
    opt_fields=opt_fields,
    **fields,
  )
  variables = _variables()
  state = learner.get_grad_tx(_hparams()).init(variables)
  moved = jax.tree.map(lambda w: w + 1.0, variables)
  new, state, _ = _step(learner, variables, moved, state=state)
  np.testing.assert_array_equal(
    new['non_trainable']['mean'], moved['non_trainable']['mean']
  )
  averages = dict(
    (jax.tree_util.keystr(path), value)
    for path, value in jax.tree_util.tree_flatten_with_path(state)[0]
    if 'ema' in jax.tree_util.keystr(path)
  )
  names = {'head': "['head']", 'lm': "['lm']", 'mean': "['mean']"}
  for name, key in names.items():
    matches = [path for path in averages if key in path]
    assert bool(matches) == (name in averaged)
  for path, value in averages.items():
    if "['mean']" in path:
      # The average of the variables 0 and 1 of a first step, whatever decays.
      mean = variables['non_trainable']['mean']
      np.testing.assert_allclose(value, mean + 0.9, rtol=1e-6)


def test_a_subclass_may_decide_which_steps_are_valid():
  class HalvingLearner(learners.Learner):
    def scale_gradients(self, raw_grads, *args, **kwargs):
      grads, valid_step = super().scale_gradients(raw_grads, *args, **kwargs)
      is_small = jnp.abs(grads['params']['lm']['w']).max() < 100.0
      return jax.tree.map(lambda g: g / 2, grads), valid_step & is_small

  variables = _variables()
  learner = HalvingLearner(
    **{
      name: getattr(_learner(), name)
      for name in ('name', 'loss_name', 'optimizer')
    }
  )
  for factor, decay in ((0.1, 0.975), (1e4, 1.0)):
    grads = jax.tree.map(lambda w, f=factor: w * f, variables)
    new, _, _ = _step(learner, grads, variables)
    np.testing.assert_allclose(
      new['params']['lm']['w'],
      decay * variables['params']['lm']['w'],
      rtol=1e-6,
    )
    assert learner.is_applied(grads, _hparams()) == (decay < 1.0)


def test_steps_are_valid_without_the_check():
  learner = _learner(check_valid_step=False)
  with base_layer.JaxContext.new_context():
    grads, valid_step = learner.scale_gradients({'w': jnp.full(2, np.nan)})
  assert valid_step is True
  assert np.isnan(grads['w']).all()


def test_skipping_can_be_switched_off():
  variables = _variables()
  grads = jax.tree.map(lambda w: w * np.nan, variables)
  learner = _learner(enable_skip_step_on_gradient_anomalies=False)
  new, _, summaries = _step(learner, grads, variables)
  assert np.isnan(new['params']['lm']['w']).all()
  assert summaries['learning/is_valid_step'] == 0.0
  assert learner.is_applied(grads, _hparams())


@pytest.mark.parametrize(
  'fields, learned',
  [
    ({'bprop_variable_exclusion': 'params/lm/.*'}, {'head/w'}),
    (
      {'bprop_variable_exclusion': ['params/lm/w', 'params/lm']},
      {'lm/b', 'head/w'},
    ),
    ({'bprop_variable_inclusion': ['params/lm/b']}, {'lm/b'}),
    ({'bprop_variable_inclusion': 'params/.*/w'}, {'lm/w', 'head/w'}),
  ],
)
def test_selected_variables_learn_and_have_state(fields, learned):
  variables = _variables()
  learner = _learner(optimizers.Adam.config(), **fields)
  new, state, summaries = _step(learner, variables, variables)
  expected_norm = 0.0
  for path in ('lm/w', 'lm/b', 'head/w'):
    layer, name = path.split('/')
    before = variables['params'][layer][name]
    after = new['params'][layer][name]
    assert np.array_equal(after, before) != (path in learned), path
    assert learners.is_masked(state[2].m['params'][layer][name]) != (
      path in learned
    )
    expected_norm += _norm(before) ** 2 * (path in learned)
  assert learners.is_masked(state[2].m['non_trainable']['mean'])
  np.testing.assert_allclose(
    summaries['learning/raw_grad_norm'], np.sqrt(expected_norm), rtol=1e-5
  )


def test_masked_gradients_give_the_same_step():
  variables = _variables()
  learner = _learner(bprop_variable_exclusion='params/lm/.*')
  mask = learner.bprop_mask(_hparams())
  masked = learners.mask_tree(variables, mask)
  assert masked['params']['lm'] == {'w': NONE, 'b': NONE}
  a, _, _ = _step(learner, variables, variables)
  b, _, _ = _step(learner, masked, variables)
  jax.tree.map(np.testing.assert_array_equal, a, b)
  jax.tree.map(
    np.testing.assert_array_equal,
    learners.merge_tree(masked, variables),
    variables,
  )


def test_excluded_variables_can_keep_their_state():
  variables = _variables()
  learner = _learner(
    optimizers.Adam.config(),
    bprop_variable_exclusion='params/lm/w',
    keep_optimizer_state_for_excluded_vars=True,
  )
  new, state, _ = _step(learner, variables, variables)
  np.testing.assert_array_equal(state[2].m['params']['lm']['w'], 0.0)
  np.testing.assert_array_equal(
    new['params']['lm']['w'], variables['params']['lm']['w']
  )
  assert np.abs(state[2].m['params']['head']['w']).min() > 0.0


def test_overwritten_variables_take_their_gradient_unless_skipped():
  hparams = _hparams()
  hparams['params']['lm']['b'] = _weight([3], Flags.OVERWRITE_WITH_GRADIENT)
  variables = _variables()
  grads = jax.tree.map(lambda w: w * 10.0, variables)
  learner = _learner(opt_fields={'clip_gradient_norm_to_value': 1e-3})
  new, _, summaries = _step(learner, grads, variables, hparams)
  np.testing.assert_array_equal(
    new['params']['lm']['b'], grads['params']['lm']['b']
  )
  others = [grads['params']['lm']['w'], grads['params']['head']['w']]
  np.testing.assert_allclose(
    summaries['learning/raw_grad_norm'], _norm(others), rtol=1e-5
  )
  others = [variables['params']['lm']['w'], variables['params']['head']['w']]
  np.testing.assert_allclose(
    summaries['learning/var_norm'], _norm(others), rtol=1e-5
  )
  assert 0.0 < summaries['learning/applied_grad_norm'] <= 1e-3
  grads['params']['lm']['w'] *= np.nan
  new, _, _ = _step(learner, grads, variables, hparams)
  np.testing.assert_array_equal(
    new['params']['lm']['b'], variables['params']['lm']['b']
  )


def test_updates_can_be_scaled_as_the_variable_was_initialized():
  hparams = _hparams()
  init = base_layer.WeightInit.Gaussian(0.25)
  hparams['params']['lm']['w'].init = init
  hparams['params']['head']['w'].init = init
  variables = _variables()
  grads = jax.tree.map(jnp.ones_like, variables)
  learner = _learner(scale_update_by_var_norm=True)
  new, _, _ = _step(learner, grads, variables, hparams)
  moved = jax.tree.map(jnp.subtract, variables, new)['params']['lm']
  np.testing.assert_allclose(moved['w'], LR * 0.25, rtol=1e-5)
  # A vector has no such scale.
  np.testing.assert_allclose(moved['b'], LR, rtol=1e-5)


def test_norms_of_single_variables_on_request():
  variables = _variables()
  learner = _learner(
    grad_norm_individual_vars=True,
    var_norm_individual_vars=True,
    grad_norm_summary=False,
    var_norm_summary=False,
  )
  _, _, summaries = _step(learner, variables, variables)
  np.testing.assert_allclose(
    summaries['per_var_grad_norm/params/head/w'],
    _norm(variables['params']['head']['w']),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    summaries['per_var_norm/params/lm/b'],
    _norm(variables['params']['lm']['b']),
    rtol=1e-5,
  )
  assert 'learning/raw_grad_norm' not in summaries
  assert 'learning/var_norm' not in summaries


@pytest.mark.parametrize(
  ('fields', 'opt_fields', 'names'),
  [
    ({'bprop_variable_exclusion': ['.*/b']}, {}, {'lm/w', 'head/w'}),
    ({'bprop_variable_inclusion': ['.*/lm/.*']}, {}, {'lm/w', 'lm/b'}),
    (
      {'bprop_variable_exclusion': ['.*/b']},
      {'ema_decay': 0.9},
      {'lm/w', 'head/w', 'mean'},
    ),
    (
      {
        'bprop_variable_exclusion': ['.*/b'],
        'keep_optimizer_state_for_excluded_vars': True,
      },
      {},
      {'lm/w', 'lm/b', 'head/w', 'mean'},
    ),
  ],
)
def test_norms_are_of_variables_that_are_learned_or_have_state(
  fields, opt_fields, names
):
  variables = _variables()
  learner = _learner(
    opt_fields=opt_fields, var_norm_individual_vars=True, **fields
  )
  _, _, summaries = _step(learner, variables, variables)
  values = {
    path.partition('/')[2]: value
    for path, value in py_utils.tree_paths(variables)
  }
  expected = _norm({name: values[name] for name in names})
  np.testing.assert_allclose(
    summaries['learning/var_norm'], expected, rtol=1e-5
  )
  prefix = 'per_var_norm/'
  recorded = {k for k in summaries if k.startswith(prefix)}
  assert {k.removeprefix(prefix).partition('/')[2] for k in recorded} == names


def test_stacked_layers_get_a_state_of_their_own():
  stacked = dict(repeat_prefix=[4], repeat_prefix_split_dims_mapping=[-1])
  hparams = _hparams()
  hparams['params']['lm']['w'] = _weight([2, 3], **stacked)
  variables = _variables()
  variables['params']['lm']['w'] = jnp.ones([4, 2, 3])
  for sep in '#_':
    learner = _learner(optimizers.Adam.config(), repeat_prefix_sep=sep)
    _, state, _ = _step(learner, variables, variables, hparams)
    assert set(state) == {'no_prefix', f'p{sep}4{sep}i-1'}
    specs = learner.get_grad_tx(hparams).init_partition_spec(hparams)
    assert jax.tree.structure(specs) == jax.tree.structure(state)
  plain = _learner(optimizers.Adam.config(), vectorize_on_repeat_prefix=False)
  _, state, _ = _step(plain, variables, variables, hparams)
  assert isinstance(state, tuple)
  forced = _learner(force_repeat_prefix_structure=True)
  assert set(_step(forced, variables, variables)[1]) == {'no_prefix'}


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'name': ''}, 'name must be set'),
    ({'name': '-b'}, 'letter or underscore'),
    ({'skip_zero_gradients': True}, 'skip_zero_gradients'),
    (
      {'bprop_variable_exclusion': 'a', 'bprop_variable_inclusion': 'b'},
      'got both',
    ),
    (
      {
        'force_repeat_prefix_structure': True,
        'vectorize_on_repeat_prefix': False,
      },
      'needs vectorize_on_repeat_prefix=True',
    ),
    ({'optimizer': None}, 'must be an optimizer or its Config, got None'),
    ({'optimizer': optax.adam(1e-3)}, 'OptaxOptimizer.config'),
    (
      {'optimizer': pax_fiddle.Config(optax.adam, learning_rate=1e-3)},
      'OptaxOptimizer.config',
    ),
  ],
)
def test_errors(fields, message):
  config = learners.Learner.config(
    name='learner', optimizer=optimizers.Sgd.config()
  )
  with pytest.raises(ValueError, match=message):
    config.set(**fields).Instantiate()


def test_what_optimizers_keep_to_be_shown_is_shown():
  shampoo = optimizers.DistributedShampoo.config(
    block_size=4, preconditioning_compute_steps=1, matrix_epsilon=1e-2
  )
  learner = _learner(shampoo)
  _, _, summaries = jax.jit(lambda v: _step(learner, v, v))(_variables())
  errors = {k: v for k, v in summaries.items() if 'root_errors' in k}
  prefix = 'inverse_pth_root_errors/params'
  assert set(errors) == {f'{prefix}/{x}' for x in ('lm/w', 'lm/b', 'head/w')}
  assert all(0 <= x < 1e-2 for x in errors.values())


def test_consolidation_by_variable_of_stacked_and_excluded_variables():
  hparams = {
    'params': {
      'w': _weight([2, 3]),
      'stacked': _weight([3], repeat_prefix=[4]),
      'excluded': _weight([3]),
    }
  }
  factors = {'params': {'w': 2.0, 'stacked': 4.0, 'excluded': 1.0}}
  learner = _learner(
    opt_fields=dict(ewc_regularizer_weight=0.5, ewc_weight_per_var=factors),
    bprop_variable_exclusion='params/excluded',
  )
  start = jax.tree.map(lambda hp: jnp.ones(hp.full_shape), hparams)
  zeros = jax.tree.map(jnp.zeros_like, start)
  moved, state, _ = _step(learner, zeros, start, hparams)
  moved = jax.tree.map(lambda w: w + 1.0, moved)
  pulled, _, _ = _step(learner, zeros, moved, hparams, state)
  pull = jax.tree.map(lambda new, old: old - new, pulled, moved)['params']
  np.testing.assert_allclose(pull['w'], LR * 0.5 / 2 * 2.0, rtol=1e-5)
  np.testing.assert_allclose(pull['stacked'], LR * 0.5 / 2 * 4.0, rtol=1e-5)
  np.testing.assert_array_equal(pull['excluded'], 0.0)


def test_a_factor_of_consolidation_must_broadcast_to_one_layer():
  hparams = {'stacked': _weight([3], repeat_prefix=[4])}
  learner = _learner(
    opt_fields=dict(
      ewc_regularizer_weight=0.5,
      ewc_weight_per_var={'stacked': np.ones([4, 3])},
    )
  )
  ones = {'stacked': jnp.ones([4, 3])}
  with pytest.raises(ValueError, match=r'shape \(4, 3\) .* of shape \(3,\)'):
    _step(learner, ones, ones, hparams)
