# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The network, metrics and input of MNIST; tests/integration trains it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal, special

from pax.tasks.vision.params import mnist
from praxis import base_layer, pax_fiddle
from praxis.nested_map import NestedMap
from tests.testing import layers

Config = pax_fiddle.Config


def _batch(rows: int, *, side: int, weights=None) -> NestedMap:
  random = np.random.default_rng(1)
  batch = NestedMap(
    inputs=random.random((rows, side, side, 1), np.float32),
    labels=random.integers(0, 4, rows, np.int32),
  )
  if weights is not None:
    batch.eval_sample_weights = np.float32(weights)
  return batch


def _convolved(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Channel by channel, by scipy, [B, H, W, I] and [3, 3, I, O]."""
  return np.stack(
    [
      sum(
        signal.correlate(images[..., i], weights[None, ..., i, o], mode='same')
        for i in range(images.shape[-1])
      )
      for o in range(weights.shape[-1])
    ],
    axis=-1,
  )


def _halved(images: np.ndarray) -> np.ndarray:
  b, h, w, c = images.shape
  return images.reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4))


def test_logits_are_those_by_hand(monkeypatch):
  monkeypatch.setattr(mnist, '_CHANNELS', (2, 3))
  monkeypatch.setattr(mnist, '_HIDDEN_DIMS', 5)
  network = Config(mnist.CNN, name='n', height=8, width=4, num_classes=4)
  images = np.random.default_rng(0).random((2, 8, 4, 1), np.float32)
  layer = network.Instantiate()
  variables = layers.random_variables(layer, jnp.asarray(images))
  p = jax.tree.map(np.asarray, variables['params'])
  hidden = images.astype(np.float64)
  for name in ('conv1', 'conv2'):
    hidden = _convolved(hidden, p[name]['w']) + p[name]['b']
    hidden = _halved(np.maximum(hidden, 0))
  hidden = hidden.reshape(2, -1)
  first = p['dense_0']
  hidden = hidden @ first['linear']['w'] + first['bias']['b']
  wanted = np.maximum(hidden, 0) @ p['dense_1']['w'] + p['dense_2']['b']
  with base_layer.JaxContext.new_context():
    found = layer.apply(variables, jnp.asarray(images))
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def _metrics(batch: NestedMap, logits: np.ndarray) -> NestedMap:
  model = Config(mnist.CNNModel, name='m').Instantiate()
  with base_layer.JaxContext.new_context():
    metrics, out = model.apply(
      {}, logits, batch, method=mnist.CNNModel.compute_loss
    )
  np.testing.assert_array_equal(out.predictions, logits)
  return metrics


@pytest.mark.parametrize('weights', [None, [1, 1, 0, 1, 0]])
def test_examples_count_by_their_weights(weights):
  logits = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
  batch = _batch(5, side=4, weights=weights)
  counted = np.ones(5) if weights is None else np.array(weights)
  losses = -special.log_softmax(logits, -1)[np.arange(5), batch.labels]
  is_right = logits.argmax(-1) == batch.labels
  metrics = _metrics(batch, logits)
  for name, values in {'loss': losses, 'accuracy': is_right}.items():
    mean, weight = metrics[name]
    assert float(mean) == pytest.approx(np.average(values, weights=counted))
    assert float(weight) == counted.sum()


def test_a_batch_of_padding_counts_for_nothing():
  metrics = _metrics(_batch(2, side=4, weights=[0, 0]), np.ones((2, 4), 'f4'))
  assert [float(x) for x in metrics.loss] == [0, 0]


def test_a_size_that_cannot_be_halved_twice():
  network = Config(mnist.CNN, name='n', height=30)
  with pytest.raises(ValueError, match='divisible by 4'):
    network.Instantiate().abstract_init_with_metadata(jnp.ones((1, 30, 28, 1)))


def test_batches_of_the_experiment():
  train, test = mnist.MnistExperiment().datasets()
  assert (train.is_training, test.is_training) == (True, False)
  assert (train.name, test.name) == ('train', 'test')
  assert test.reset_for_eval
  batch = train.Instantiate().get_next()
  assert batch.inputs.shape == (1024, 28, 28, 1)
  assert batch.inputs.dtype == np.float32
  assert (batch.inputs.min(), batch.inputs.max()) == (0, 1)
  assert batch.labels.dtype == np.int32
  provider = mnist.MnistExperiment().get_input_specs_provider_params()
  specs = provider.Instantiate().get_input_specs()
  shapes = lambda tree: {n: (x.shape, x.dtype) for n, x in tree.items()}
  assert shapes(specs) == shapes(batch)
  held_out = test.Instantiate().get_next()
  assert held_out.eval_sample_weights.sum() == 1000
