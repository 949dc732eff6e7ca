# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The benchmark model predicts labels from single tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from praxis.layers import models
from praxis.nested_map import NestedMap
from tests.testing.layers import random_variables


def test_loss_is_a_cross_entropy_with_gradients():
  cfg = models.ClassificationMLPModel.config(name='mlp')
  cfg.mlp_tpl.set(num_layers=2, hidden_dims=6)
  cfg.mlp_tpl.ff_tpl.set(input_dims=4, output_dims=4)
  cfg.softmax_tpl.set(num_classes=7)
  layer = cfg.Instantiate()
  ids = jnp.asarray([[1, 2, 3], [4, 5, 6]])
  batch = NestedMap(ids=ids, labels=ids[::-1], weights=jnp.ones(ids.shape))
  variables = random_variables(layer, batch, scale=1.0)
  assert set(variables['params']) == {'mlp_layers_0', 'softmax'}
  metrics, out = jax.jit(layer.apply)(variables, batch)
  np.testing.assert_array_equal(out.labels, batch.labels)

  params = jax.tree.map(np.asarray, variables['params'])
  w = params['softmax']['logits_ffn']['linear']['w']
  hidden = w.T[np.asarray(ids)]
  for i in range(2):
    layer_w = params['mlp_layers_0'][f'mlp_layers_{i}']['linear']['w']
    layer_b = params['mlp_layers_0'][f'mlp_layers_{i}']['bias']['b']
    hidden = np.maximum(hidden @ layer_w + layer_b, 0)
  logits = hidden @ w + params['softmax']['logits_ffn']['bias']['b']
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels = np.asarray(batch.labels)[..., None]
  want = -np.take_along_axis(log_probs, labels, -1).mean()
  np.testing.assert_allclose(metrics.total_loss, (want, 6), rtol=1e-5)

  loss = lambda variables: layer.apply(variables, batch)[0].total_loss[0]
  grads = jax.jit(jax.grad(loss))(variables)
  for grad in jax.tree.leaves(grads):
    assert jnp.any(grad != 0)
