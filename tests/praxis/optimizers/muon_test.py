# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Muon against Optax, numpy and the singular value decomposition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest

from praxis import (
  base_layer,
  optimizers,
  py_utils,
  schedules,
  weight_matrices,
)
from praxis.layers.attentions import projections
from praxis.optimizers import prefix_vectorization
from tests.praxis.layers import running
from tests.praxis.optimizers import problem

vectorize = (
  prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
)


def _tx_of(hparams):
  optimizer = optimizers.Muon.config(
    learning_rate=1.0, lr_schedule=schedules.Constant.config(value=1.0)
  )
  return optimizer.Instantiate().get_grad_transformation(hparams)


def _direction(hparams, gradient):
  """Returns the first update, times -1, of a variable with this declaration."""
  tx, grads = _tx_of({'w': hparams}), {'w': gradient}
  updates, _ = running.jit(tx.update)(grads, tx.init(grads), grads)
  return -updates['w']


def _random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_without_nesterov_it_is_that_of_optax():
  tx = problem.tx_of(optimizers.Muon.config(nesterov=False))
  twin = optax.contrib.muon(
    problem.lr, nesterov=False, adam_b2=0.95, consistent_rms=0.2
  )
  params = problem.variables()
  got, _ = problem.run(tx, params)
  want, _ = problem.run(twin, params)
  problem.assert_close(got, want)


def test_nesterov_mixes_the_gradient_once_more():
  def rule(step, g, w, memory):
    if g.ndim == 1:
      memory['m'] = 0.9 * memory.get('m', 0.0) + 0.1 * g
      memory['v'] = 0.95 * memory.get('v', 0.0) + 0.05 * g * g
      m = memory['m'] / (1 - 0.9 ** (step + 1))
      v = memory['v'] / (1 - 0.95 ** (step + 1))
      return -float(problem.lr(step)) * m / (np.sqrt(v) + 1e-8)
    memory['m'] = 0.95 * memory.get('m', 0.0) + 0.05 * g
    x = 0.95 * memory['m'] + 0.05 * g
    x = x / np.linalg.norm(x)
    for _ in range(5):
      x = 3.4445 * x - 4.775 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    scale = 0.2 * np.sqrt(max(x.shape))
    return -float(problem.lr(step)) * scale * x

  params = problem.variables()
  got, state = problem.run(problem.tx_of(optimizers.Muon.config()), params)
  problem.assert_close(got, problem.run_numpy(rule, params))
  assert state[2][0].m['params']['w'].shape == (4, 6)
  assert state[2][1].v['params']['b'].shape == (6,)


@pytest.mark.parametrize('shape', [(24, 40), (40, 24), (32, 32)])
def test_updates_have_the_singular_vectors_of_the_gradient(shape):
  gradient = _random(*shape)
  update = _direction(problem.weight(shape), gradient)
  u, s, vt = np.linalg.svd(gradient, full_matrices=False)
  scale = 0.2 * np.sqrt(max(shape))
  mapped = u.T @ np.asarray(update) @ vt.T / scale
  np.testing.assert_allclose(mapped - np.diag(np.diag(mapped)), 0.0, atol=1e-4)
  large = s / np.linalg.norm(s) > 0.002
  assert np.all(np.diag(mapped)[large] > 0.68)
  assert np.all(np.diag(mapped) < 1.21)


def test_an_update_has_the_rms_of_adam():
  update = _direction(problem.weight([64, 256]), _random(64, 256))
  assert 0.15 < float(jnp.sqrt(jnp.mean(update**2))) < 0.25


@pytest.mark.parametrize(
  'fields, to_matrix',
  [
    ({}, lambda w: w.reshape(8, -1)),
    ({'attention_combine_dims': True, 'use_bias': False}, lambda w: w),
    ({'explicit_fan_in_fan_out_axes': True}, lambda w: w.reshape(8, -1)),
    ({'is_output_projection': True}, lambda w: w.reshape(8, -1).T),
    (
      {'is_output_projection': True, 'use_nhd_shape': True},
      lambda w: w.reshape(-1, 8),
    ),
  ],
)
def test_heads_of_a_projection_are_one_dimension(fields, to_matrix):
  layer_p = projections.AttentionProjection.config(
    name='query', input_dim=8, num_heads=3, dim_per_head=4, **fields
  )
  layer = layer_p.Instantiate()
  inputs = (2, 3, 4) if layer.is_output_projection else (2, 8)
  hparams = layer.abstract_init_with_metadata(jnp.zeros(inputs))
  hparams = hparams['params']['w']
  gradient = _random(*hparams.shape)
  got = to_matrix(_direction(hparams, gradient))
  want = to_matrix(gradient)
  want = _direction(problem.weight(want.shape), want)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_queries_keys_and_values_are_three_matrices():
  layer = projections.CombinedQKVProjectionLayer.config(
    name='qkv', input_dim=8, num_heads=3, dim_per_head=4
  ).Instantiate()
  hparams = layer.abstract_init_with_metadata(jnp.zeros((2, 8)))
  hparams = hparams['params']['w']
  gradient = _random(3, 8, 3, 4)
  got = _direction(hparams, gradient)
  for i in range(3):
    want = _direction(problem.weight([8, 12]), gradient[i].reshape(8, 12))
    np.testing.assert_allclose(
      got[i].reshape(8, 12), want, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize('is_vectorized', [False, True])
def test_repeated_layers_have_a_matrix_each(is_vectorized):
  hparams = {'w': problem.weight([4, 6], repeat_prefix=[3])}
  grads = {'w': _random(3, 4, 6)}
  tx = vectorize(_tx_of, hparams) if is_vectorized else _tx_of(hparams)
  updates, _ = running.jit(tx.update)(grads, tx.init(grads), grads)
  for update, gradient in zip(updates['w'], grads['w'], strict=True):
    want = -_direction(problem.weight([4, 6]), gradient)
    np.testing.assert_allclose(update, want, rtol=1e-4, atol=1e-5)


def test_variables_of_one_shape_have_their_own_updates():
  shapes = {'a': [4, 6], 'b': [6, 4], 'c': [4, 6], 'd': [2, 4, 6]}
  hparams = {name: problem.weight(shape) for name, shape in shapes.items()}
  grads = {
    name: _random(*shape, seed=seed)
    for seed, (name, shape) in enumerate(shapes.items())
  }
  tx = _tx_of(hparams)
  updates, _ = running.jit(tx.update)(grads, tx.init(grads), grads)
  for name, gradient in grads.items():
    want = -_direction(hparams[name], gradient)
    np.testing.assert_allclose(updates[name], want, rtol=1e-4, atol=1e-5)


def test_adam_updates_embeddings_logits_biases_and_vectors():
  shapes = {
    'lm': {
      'softmax': {'w': [8, 4]},
      'embedding_lookup': {'emb_var': [8, 4]},
      'ff': {'w': [4, 8], 'b': [8]},
      'moe': {
        'wi_0': [3, 4, 8],
        'bi_0': [3, 8],
        'bi_gate_0': [3, 8],
        'bo': [3, 4],
      },
      'query': {'w': [4, 2, 2], 'b': [2, 2]},
    }
  }
  hparams = jax.tree.map(
    problem.weight, shapes, is_leaf=lambda x: isinstance(x, list)
  )
  matrices, adam = _tx_of(hparams).init_partition_spec(hparams)[2]
  assert [path for path, _ in py_utils.tree_paths(matrices.m)] == [
    'lm/ff/w',
    'lm/moe/wi_0',
    'lm/query/w',
  ]
  assert [path for path, _ in py_utils.tree_paths(adam.v)] == [
    'lm/embedding_lookup/emb_var',
    'lm/ff/b',
    'lm/moe/bi_0',
    'lm/moe/bi_gate_0',
    'lm/moe/bo',
    'lm/query/b',
    'lm/softmax/w',
  ]


def test_a_zero_gradient_is_no_update():
  update = _direction(problem.weight([4, 6]), np.zeros((4, 6), np.float32))
  np.testing.assert_array_equal(update, 0.0)


def test_declarations_are_needed():
  with pytest.raises(ValueError, match='pass var_weight_hparams'):
    _tx_of(None)


def test_axes_count_from_the_last():
  declared = base_layer.WeightHParams(
    [3, 4, 5], fan_in_axes=[0], fan_out_axes=[1, -1]
  )
  assert weight_matrices.matrix_axes(declared) == ([-3], [-2, -1])
