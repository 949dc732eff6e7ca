# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The classifier's metrics, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import linears, models
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _D, _V = 3, 4, 7


def _layer(classes=_V):
  cfg = models.ClassificationModel.config(
    name='model',
    network_tpl=linears.Linear.config(input_dims=_D, output_dims=5),
    input_field='pixels',
    label_field='probs',
  )
  cfg.softmax_tpl.set(input_dims=5, num_classes=classes)
  return cfg.Instantiate()


def _batch(classes=_V):
  labels = jnp.asarray([0, 2, 1])
  return NestedMap(
    pixels=running.normal(_B, 2, _D),
    probs=jnp.eye(classes)[labels],
    weight=jnp.asarray([1.0, 0.0, 2.0]),
  )


def _all(layer, batch):
  predictions = layer.compute_predictions(batch)
  loss = layer.compute_loss(predictions, batch)
  return predictions, *loss, layer.predict(batch)


def test_metrics_and_scores():
  """Features are averaged over places; the second example does not count."""
  layer, batch = _layer(), _batch()
  variables = random_variables(layer, batch)
  predictions, metrics, outputs, predicted = running.run(
    layer, variables, batch, method=_all
  )
  params = variables['params']
  features = (np.asarray(batch.pixels) @ params['network']['w']).mean(1)
  np.testing.assert_allclose(predictions.features, features, rtol=1e-5)
  softmax = params['softmax']['logits_ffn']
  logits = features @ softmax['linear']['w'] + softmax['bias']['b']
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  weights = np.asarray(batch.weight)
  xent = -(log_probs * np.asarray(batch.probs)).sum(-1) @ weights / 3
  of_labels = logits[np.arange(_B), [0, 2, 1]]
  rank = (logits > of_labels[:, None]).sum(-1)
  acc1 = (rank < 1) @ weights / 3
  acc5 = (rank < 5) @ weights / 3
  want = {
    'avg_xent': (xent, 3),
    'num_predictions': (3, 1),
    'accuracy': (acc1, 3),
    'error': (1 - acc1, 3),
    'acc5': (acc5, 3),
    'error5': (1 - acc5, 3),
  }
  assert set(metrics) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(metrics[name], pair, rtol=1e-5, err_msg=name)
  np.testing.assert_allclose(outputs.scores, logits, rtol=1e-4)
  np.testing.assert_array_equal(outputs.labels, batch.probs)
  np.testing.assert_allclose(predicted.logits, logits, rtol=1e-4)
  np.testing.assert_allclose(predicted.logp, log_probs, rtol=1e-4)


def test_few_classes_have_no_five_best():
  layer, batch = _layer(4), _batch(4)
  variables = random_variables(layer, batch)
  metrics, outputs, rest = running.run(layer, variables, batch, method='decode')
  assert set(metrics) == {'avg_xent', 'num_predictions', 'accuracy', 'error'}
  assert not outputs and not rest
  assert layer.process_decode_out(None, outputs) == ({}, [], {})


def test_weights_of_another_shape_are_refused():
  batch = _batch()
  batch.weight = jnp.ones((_B, 1))
  with pytest.raises(ValueError, match=r'weight must have shape \(3,\)'):
    random_variables(_layer(), batch)
