# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""ShardedAdafactor against a numpy twin, and its state in few bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import optimizers, py_utils
from praxis.optimizers import masked_trees, quantized_moments
from tests.praxis.optimizers import problem

Adafactor = optimizers.ShardedAdafactor


def _rms(x):
  return np.sqrt(np.mean(x * x))


def _twin(beta1, decay_of, clip, weight_decay=0.0, scaled=False):
  """Returns Adafactor's rule; its second moment is an outer product."""

  def rule(step, g, w, memory):
    lr, d = float(problem.lr(step)), decay_of(step + 1)
    square = g * g + 1e-30
    if g.ndim == 2:
      for name, axis in (('r', 1), ('c', 0)):
        mean = square.mean(axis=axis)
        memory[name] = d * memory.get(name, 0.0) + (1 - d) * mean
      v = np.outer(memory['r'], memory['c']) / memory['r'].mean()
    else:
      v = memory['v'] = d * memory.get('v', 0.0) + (1 - d) * square
    u = g / np.sqrt(v)
    u = lr * u / max(1.0, _rms(u) / clip)
    if scaled:
      u = u * max(_rms(w), 1e-3)
    if beta1:
      u = memory['m'] = beta1 * memory.get('m', 0.0) + (1 - beta1) * u
    return -u - lr * weight_decay * w

  return rule


def _adam_decay(t, beta=0.9):
  return beta * (1 - beta ** (t - 1)) / (1 - beta**t)


CASES = {
  'adam_decay_momentum': (
    dict(beta1=0.9, decay_method='adam', decay_adam=0.9, clip_threshold=0.7),
    _twin(0.9, _adam_decay, 0.7),
  ),
  'pow_decay_no_momentum': (
    dict(decay_method='pow', decay_pow=0.8, weight_decay=0.1),
    _twin(0.0, lambda t: 1 - t**-0.8, 1.0, weight_decay=0.1),
  ),
  'parameter_scale': (
    dict(decay_method='pow', decay_pow=0.8, multiply_by_parameter_scale=True),
    _twin(0.0, lambda t: 1 - t**-0.8, 1.0, scaled=True),
  ),
}


@pytest.mark.parametrize('name', CASES)
def test_same_as_the_numpy_twin(name):
  fields, rule = CASES[name]
  params = problem.variables()
  tx = problem.tx_of(Adafactor.config(quantized_dtype='float32', **fields))
  got, _ = problem.run(tx, params)
  problem.assert_close(got, problem.run_numpy(rule, params), rtol=2e-3)


def test_not_factored_it_is_adam_without_epsilon():
  params = problem.variables()
  ours = Adafactor.config(
    factored=False, decay_method='adam', decay_adam=0.9, clip_threshold=None
  )
  adam = optimizers.Adam.config(
    beta1=0.0, beta2=0.9, epsilon=1e-12, clip_threshold=0.0
  )
  a, _ = problem.run(problem.tx_of(ours), params)
  b, _ = problem.run(problem.tx_of(adam), params)
  problem.assert_close(a, b)


@pytest.mark.parametrize('dtype, limit', [('int8', 0.02), ('bfloat16', 0.01)])
def test_fewer_bits_stay_close_to_float32(dtype, limit):
  params = problem.variables()
  exact, _ = problem.run(
    problem.tx_of(Adafactor.HParamsAdamB(quantized_dtype='float32')), params
  )
  rough, state = problem.run(
    problem.tx_of(Adafactor.HParamsAdamB(quantized_dtype=dtype)), params
  )
  moved = exact['params']['w'] - params['params']['w']
  error = rough['params']['w'] - exact['params']['w']
  assert 0 < _rms(np.asarray(error)) < limit * _rms(np.asarray(moved))
  assert state[2].m['params']['w'].dtype == jnp.dtype(dtype)


def test_int8_has_one_scale_per_column():
  x = jnp.array([[1.27, -100.0], [-0.5, 50.0], [0.0, 0.0]])
  values, scale = quantized_moments.to_quantized(x, 'int8')
  np.testing.assert_array_equal(values, [[127, -127], [-50, 64], [0, 0]])
  np.testing.assert_allclose(scale, [0.01, 100 / 127], rtol=1e-6)
  error = np.abs(quantized_moments.to_float(values, scale) - x)
  assert (error <= np.asarray(scale) / 2 + 1e-6).all()


def test_zeros_survive_quantization():
  values, scale = quantized_moments.to_quantized(jnp.zeros([3, 2]), 'int8')
  np.testing.assert_array_equal(quantized_moments.to_float(values, scale), 0.0)


def test_state_holds_only_what_a_variable_needs():
  tx = problem.tx_of(Adafactor.HParamsAdamB())
  state = tx.init(problem.variables())[2]
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), state)
  w, b = (
    {f: getattr(shapes, f)['params'][v] for f in shapes._fields[1:6]}
    for v in 'wb'
  )
  none = masked_trees.BpropMaskedNode()
  assert w == {
    'm': ((4, 6), 'int8'),
    'm_scale': ((6,), 'float32'),
    'vr': ((4,), 'float32'),
    'vc': ((6,), 'float32'),
    'v': none,
  }
  assert b == {
    'm': ((6,), 'int8'),
    'm_scale': ((), 'float32'),
    'vr': none,
    'vc': none,
    'v': ((6,), 'float32'),
  }


def test_momentum_of_scalars_is_not_quantized():
  tx = problem.tx_of(Adafactor.HParamsAdamB())
  params = {'scale': jnp.float32(0.5)}
  _, state = tx.update({'scale': jnp.float32(0.25)}, tx.init(params), params)
  assert state[2].m['scale'].dtype == jnp.float32
  assert masked_trees.is_masked(state[2].m_scale['scale'])


@pytest.mark.parametrize(
  'shape, row, column',
  [
    ((200, 2, 300), (200, 2), (2, 300)),
    ((300, 2, 200), (2, 200), (300, 2)),
    ((200, 2, 200), (2, 200), (200, 2)),
    ((200, 2, 100), None, None),
  ],
)
def test_sorted_dims_factor_the_two_largest(shape, row, column):
  config = Adafactor.config(
    decay_method='pow', decay_pow=0.8, sort_factored_second_moment_dims=True
  )
  tx = problem.tx_of(config)
  params = {'w': jnp.zeros(shape)}
  state = jax.eval_shape(tx.init, params)[2]
  shapes = [getattr(p['w'], 'shape', None) for p in (state.vr, state.vc)]
  assert shapes == [row, column]
  assert getattr(state.v['w'], 'shape', None) == (None if row else shape)
  jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), params)


def test_weight_decay_by_path_and_flag():
  # The last expression that matches counts.
  decay = {'params/.*': 0.25, 'params/w': 0.5}
  config = Adafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    weight_decay=decay,
    respect_skip_lp_regularization=True,
  )
  params = problem.variables()
  tx = problem.tx_of(config)
  zeros = jax.tree.map(jnp.zeros_like, params)
  state = jax.tree.map(lambda c: c + 6 if c.shape == () else c, tx.init(params))
  updates, _ = tx.update(zeros, state, params)
  lr = problem.lr(6)
  want = {'w': 0.5, 'b': 0.25, 'skipped': 0.0}
  for name, weight in want.items():
    np.testing.assert_allclose(
      updates['params'][name],
      -lr * weight * params['params'][name],
      rtol=1e-5,
      atol=1e-8,
    )


@pytest.mark.parametrize('excluded', [['params/b'], 'params/b'])
def test_layerwise_adaptation_gives_updates_lr_times_the_norm_of_w(excluded):
  config = Adafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    layerwise_adaptation=True,
    exclude_from_layerwise_adaptation=excluded,
  )
  params = problem.variables()
  tx = problem.tx_of(config)
  state = jax.tree.map(lambda c: c + 1 if c.shape == () else c, tx.init(params))
  updates, _ = tx.update(problem.gradients(params, 1), state, params)
  w, b = (np.asarray(updates['params'][n]) for n in 'wb')
  want = problem.lr(1) * _rms(params['params']['w'])
  np.testing.assert_allclose(_rms(w), want, rtol=1e-5)
  assert _rms(b) <= problem.lr(1) * 1.0001


def test_layerwise_adaptation_includes_weight_decay():
  """By hand, for the first step: the step is the sign of the gradient."""
  config = Adafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    factored=False,
    layerwise_adaptation=True,
    weight_decay=0.5,
  )
  tx = config.Instantiate()._update_rule(lambda step: 0.1, None)
  w = np.array([3.0, -1.0, 2.0, 0.5], np.float32)
  g = np.array([1.0, 2.0, -3.0, 4.0], np.float32)
  updates, _ = tx.update({'w': g}, tx.init({'w': w}), {'w': w})
  direction = np.sign(g) + 0.5 * w
  want = -0.1 * _rms(w) / _rms(direction) * direction
  np.testing.assert_allclose(updates['w'], want, rtol=1e-5)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(), "decay_method must be 'adam' or 'pow'"),
    (dict(decay_method='adam', decay_adam=1.0), 'decay_adam must be'),
    (dict(decay_method='pow', decay_pow=-0.8), 'decay_pow must be'),
    (
      dict(decay_method='pow', decay_pow=0.8, quantized_dtype='int4'),
      'quantized_dtype must',
    ),
  ],
)
def test_errors(fields, message):
  with pytest.raises(ValueError, match=message):
    Adafactor.config(**fields).Instantiate()


@pytest.mark.parametrize(
  'fields, name',
  [
    (dict(decay_method='adam', decay_pow=0.8), 'decay_adam'),
    (dict(decay_method='pow', decay_adam=0.9), 'decay_pow'),
  ],
)
def test_only_updates_need_a_decay(fields, name):
  """Programs restore the state without the constants of the training."""
  tx = Adafactor.config(**fields).Instantiate()._update_rule(lambda _: 1, None)
  w = {'w': jnp.ones([2])}
  state = tx.init(w)
  with pytest.raises(ValueError, match=f'{name} must be above 0'):
    tx.update(w, state, w)


def test_declared_stacked_variables_must_be_vectorized():
  adafactor = Adafactor.HParamsAdamB().Instantiate()
  stacked = {'w': problem.weight([2, 2], repeat_prefix=[3])}
  tx = adafactor.get_grad_transformation(stacked)
  tx.init({'w': jnp.zeros([3, 2, 2])})  # As one variable, without a mesh.
  with pytest.raises(ValueError, match='stacked variable w'):
    tx.init_partition_spec(stacked)


def test_how_an_update_came_about():
  """By hand, for the first step: v is the squared gradient."""
  config = Adafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    clip_threshold=0.5,
    multiply_by_parameter_scale=True,
    per_var_learning_summary=True,
    factored=False,
    name='main',
  )
  tx = config.Instantiate()._update_rule(lambda step: 0.1, problem.hparams())
  params = problem.variables()
  grads = jax.tree.map(lambda w: jnp.where(w > 0, w, 0.0), params)
  state = tx.init(params)
  assert len({id(x) for x in jax.tree.leaves(state)}) == len(
    jax.tree.leaves(state)
  )
  described = tx.init_partition_spec(problem.hparams())
  _, state = problem.jit(tx.update)(grads, state, params)
  assert jax.tree.structure(state) == jax.tree.structure(described)
  w, g = (np.asarray(tree['params']['w']) for tree in (params, grads))
  learning = np.sqrt(np.mean(g != 0))
  wanted = {
    'fraction_zero_grad': np.mean(g == 0),
    'sharded_adafactor_decay_rate': 0.0,
    'sharded_adafactor_learning': learning,
    'sharded_adafactor_clipping_denom': max(1, learning / 0.5),
    'sharded_adafactor_learning_after_clipping': 0.5,
    'sharded_adafactor_parameter_scale': _rms(w),
    'sharded_adafactor_update_scale': 0.1 * _rms(w),
  }
  found = {name: tree['params']['w'] for name, tree in state.summaries.items()}
  assert found == pytest.approx(
    {f'main/{name}': value for name, value in wanted.items()}, rel=1e-5
  )


def test_what_is_not_there_is_not_shown():
  config = Adafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    clip_threshold=None,
    per_var_learning_summary=True,
  )
  tx = problem.tx_of(config)
  _, state = problem.run(tx, problem.variables(), steps=2)
  names = {
    name
    for path, _ in py_utils.tree_paths(state)
    if (name := path.rpartition('/params/w')[0].rpartition('summaries/')[2])
    and 'summaries/' in path
  }
  assert names == {
    'fraction_zero_grad',
    'sharded_adafactor_decay_rate',
    'sharded_adafactor_learning',
    'sharded_adafactor_learning_after_clipping',
    'sharded_adafactor_update_scale',
  }
