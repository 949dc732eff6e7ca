# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The small layers and models against numpy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from praxis.layers import test_layers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_X = running.normal(3, 2)
_TARGETS = running.normal(3, 2, seed=1)


def test_layers_of_layers():
  layer, variables = running.build(test_layers.TestLayer.config(), _X)
  weights = jax.tree.map(np.asarray, variables['params'])
  want = _X
  for i in range(2):
    want = want @ weights[f'linear_{i}']['w'] + weights[f'bias_{i}']['b']
  want = want @ weights['final_proj'] + 1
  np.testing.assert_allclose(running.run(layer, variables, _X), want, atol=1e-5)
  config = test_layers.ProjectionLayer.config(input_dims=2, output_dims=3)
  layer, variables = running.build(config, _X)
  weights = jax.tree.map(np.asarray, variables['params'])
  want = _X @ weights['linear']['w'] + weights['bias']['b']
  np.testing.assert_allclose(running.run(layer, variables, _X), want, atol=1e-5)
  config = test_layers.VarUnusedLayer.config(input_dims=2, output_dims=3)
  layer, variables = running.build(config, _X)
  want = np.sum(_X @ np.asarray(variables['params']['var01']))
  np.testing.assert_allclose(running.run(layer, variables, _X), want, atol=1e-5)
  assert variables['params']['var02'].shape == (2, 3)


@pytest.mark.parametrize(
  'config, predict',
  [
    (
      test_layers.TestModel01.config(input_dims=2, output_dims=2),
      lambda weights: _normalized(weights) @ weights['var01'],
    ),
    (
      test_layers.TestLinearRegressionModel.config(input_dims=2, output_dims=2),
      lambda weights: _X @ weights['linear']['w'],
    ),
    (
      test_layers.TestBatchNormalizationModel.config(input_dims=2),
      lambda weights: _normalized(weights),
    ),
  ],
)
def test_models(config, predict):
  batch = NestedMap(inputs=_X, targets=_TARGETS)
  model, variables = running.build(config, batch)
  (metrics, _), _ = running.run(
    model, variables, batch, mutable=['non_trainable']
  )
  want = predict(jax.tree.map(np.asarray, variables['params']))
  if config.cls is test_layers.TestModel01:
    loss = want.sum()
    np.testing.assert_allclose(metrics.loss02[0], (want**2).sum(), rtol=1e-4)
  else:
    loss = ((want - _TARGETS) ** 2).mean()
  np.testing.assert_allclose(metrics.loss[0], loss, rtol=1e-4)
  assert metrics.loss[1] == 1


def test_the_template_of_the_sharded_model():
  config = test_layers.TestSpmdModel.config()
  config.xformer_ffw.set(input_dims=2, hidden_dims=4)
  batch = NestedMap(inputs=_X[None])
  model, variables = running.build(config, batch)
  metrics, outputs = running.run(model, variables, batch)
  want = np.square(outputs.predictions).mean()
  np.testing.assert_allclose(metrics.loss[0], want, rtol=1e-5)


def _normalized(weights):
  """Returns the inputs, normalized by the moments of the batch."""
  mean, var = _X.mean(0), _X.var(0)
  scale, shift = 1 + weights['bn']['gamma'], weights['bn']['beta']
  return (_X - mean) / np.sqrt(var + 1e-3) * scale + shift
