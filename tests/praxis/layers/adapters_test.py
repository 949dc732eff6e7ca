# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Adapters against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import activations, adapters, normalizations, transformers
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D, _K = 2, 3, 4, 3


def _config(**kwargs):
  return adapters.MultitaskResidualAdapter.config(
    input_dims=_D, bottleneck_dims=2, num_tasks=_K
  ).set(**kwargs)


def _x():
  return running.normal(_B, _T, _D)


def _by_hand(params, x, tasks):
  """The adapter of each position, one by one; `tasks` is [B, T]."""
  params = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
  out = np.zeros(x.shape)
  for b, t in np.ndindex(*tasks.shape):
    k = tasks[b, t]
    y = np.asarray(x[b, t], np.float64)
    y = numpy_layers.layer_norm(y, params['norm']) if 'norm' in params else y
    y = np.maximum(y @ params['down_w'][k] + params['down_b'][k], 0)
    out[b, t] = y @ params['up_w'][k] + params['up_b'][k]
  return out


_TASKS = {
  'by position': np.array([[0, 2, 1], [1, 1, 0]]),
  'by row': np.array([2, 0]),
}


@pytest.mark.parametrize('name', _TASKS)
@pytest.mark.parametrize('has_norm', [True, False])
def test_adapter_equals_numpy(name, has_norm):
  config = _config() if has_norm else _config(norm_tpl=None)
  tasks = _TASKS[name]
  args = (_x(), None, jnp.asarray(tasks))
  layer, variables = running.build(config, *args)
  by_position = np.broadcast_to(tasks.reshape(_B, -1), (_B, _T))
  want = _by_hand(variables['params'], _x(), by_position)
  got = running.run(layer, variables, *args)
  np.testing.assert_allclose(got, _x() + want, atol=1e-5)

  @running.jit
  def loss_and_gradient(x):
    def loss(x):
      out = layer.apply(variables, x, *args[1:], add_residual=False)
      return jnp.sum(jnp.sin(out)), out

    return jax.value_and_grad(loss, has_aux=True)(x)

  (_, alone), gradient = loss_and_gradient(_x())
  np.testing.assert_allclose(alone, want, atol=1e-5)
  direction = np.random.default_rng(1).normal(size=(_B, _T, _D))
  moved = lambda step: np.asarray(_x(), np.float64) + step * direction
  high, low = (
    np.sum(np.sin(_by_hand(variables['params'], moved(step), by_position)))
    for step in (1e-5, -1e-5)
  )
  along = np.sum(gradient * direction)
  np.testing.assert_allclose(along, (high - low) / 2e-5, rtol=1e-3)


def test_one_task_needs_no_ids_and_starts_as_a_bias():
  config = _config(num_tasks=1, fprop_dtype=jnp.bfloat16)
  x = _x().astype(jnp.bfloat16)
  layer, variables = running.build(config, x)
  start = layer.abstract_init_with_metadata(x)['params']['up_w']
  assert (start.init.method, start.init.scale) == ('constant', 0.0)
  got = running.run(layer, variables, x)
  assert got.dtype == jnp.bfloat16
  tasks = np.zeros([_B, _T], int)
  want = np.asarray(x, np.float32) + _by_hand(variables['params'], x, tasks)
  np.testing.assert_allclose(got.astype(np.float32), want, atol=0.05)


def test_norms_that_look_at_padding_get_it():
  config = _config(norm_tpl=normalizations.BatchNorm.config())
  padding = jnp.asarray([[0.0, 0, 1], [0, 0, 0]])
  args = (padding, jnp.asarray(_TASKS['by position']))
  layer, variables = running.build(config, _x(), *args)
  other = _x().at[0, 2].set(50.0)
  got, moved = (running.run(layer, variables, x, *args) for x in (_x(), other))
  np.testing.assert_allclose(got[0, :2], moved[0, :2], atol=1e-5)
  np.testing.assert_allclose(got[1], moved[1], atol=1e-5)


_FF = {
  'input_dims': _D,
  'hidden_dims': 5,
  'activation_tpl': pax_fiddle.Config(activations.Tanh),
}


def _adapted(**kwargs):
  return adapters.AdaptedTransformerFeedForward.config(
    adapter_tpl=_config(norm_tpl=None), **_FF
  ).set(**kwargs)


@pytest.mark.parametrize(
  ('mode', 'policy', 'padding_first'),
  [
    ('parallel', 'pre', False),
    ('sequential', 'post_skip', False),
    ('sequential', 'pre', True),
    *nightly.cases(
      ('sequential', 'pre', False),
      ('parallel', 'post_skip', False),
      ('parallel', 'pre', True),
    ),
  ],
)
def test_adapted_feed_forward_equals_numpy(mode, policy, padding_first):
  config = _adapted(mode=mode, norm_policy=policy, residual_weight=0.5)
  config.apply_padding_first = padding_first
  padding = jnp.asarray([[0.0, 0, 1], [0, 0, 0]])
  tasks = _TASKS['by position']
  kwargs = {'tasks': jnp.asarray(tasks)}
  layer, variables = running.build(config, _x(), padding, **kwargs)
  params = variables['params']
  params = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
  x = np.asarray(_x(), np.float64)
  visible = 1 - np.asarray(padding)[..., None]
  if padding_first:
    # Of the residual connection, too; what padding then becomes stays.
    x *= visible
  linear = lambda x, name: (
    x @ params[name]['linear']['w'] + params[name]['bias']['b']
  )
  branch = (
    numpy_layers.layer_norm(x, params['layer_norm']) if policy == 'pre' else x
  )
  branch = linear(np.tanh(linear(branch, 'ffn_layer1')), 'ffn_layer2')
  branch *= 1 if padding_first else visible
  seen = branch if mode == 'sequential' else x
  branch = branch + _by_hand(params['adapters'], seen, tasks)
  want = x + 0.5 * branch
  if policy == 'post_skip':
    want = numpy_layers.layer_norm(want, params['layer_norm'])
  got = running.run(layer, variables, _x(), padding, **kwargs)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_without_skip_connection():
  config = _adapted(add_skip_connection=False)
  kwargs = {'tasks': jnp.asarray(_TASKS['by position'])}
  layer, variables = running.build(config, _x(), **kwargs)
  params = dict(variables['params'])
  adapter = params.pop('adapters')
  plain = transformers.TransformerFeedForward.config(
    add_skip_connection=False, **_FF
  )
  branch = running.run(plain.Instantiate(), {'params': params}, _x())
  want = branch + _by_hand(adapter, branch, _TASKS['by position'])
  got = running.run(layer, variables, _x(), **kwargs)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
  'config, tasks, message',
  [
    (_config(bottleneck_dims=0), [0, 1], 'bottleneck_dims > 0'),
    (_config(), None, 'num_tasks=3: tasks must be'),
    (_config(), [0, 1, 2], r'the last two, got \(3,\)'),
    (
      _config(norm_tpl=activations.ReLU.config()),
      [0, 1],
      'must be of a BaseNormalization',
    ),
    (_adapted(mode='both'), [0, 1], "mode must be 'sequential' or 'parallel'"),
    (_adapted(adapter_tpl=None), [0, 1], 'needs adapter_tpl'),
    (_adapted(residual_droppath_prob=0.1), [0, 1], 'residual_droppath_prob=0'),
  ],
)
def test_bad_settings(config, tasks, message):
  tasks = None if tasks is None else jnp.asarray(tasks)
  with pytest.raises(ValueError, match=message):
    running.build(config, _x(), None, tasks=tasks)
