# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Metrics, packing and label smoothing of the sequence model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from praxis.layers import models, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _S, _T, _V = 2, 4, 3, 7


def _model(**fields):
  cfg = models.SequenceModel.config(name='model').set(**fields)
  stack = transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=8, num_heads=2
  )
  cfg.model_tpl.set(
    model_dims=8,
    encoder_stacked_transformer_tpl=stack,
    decoder_stacked_transformer_tpl=stack.clone().set(
      mask_self_attention=True, use_cross_attention=True
    ),
  )
  cfg.model_tpl.softmax_tpl.num_classes = _V
  return cfg


def _batch():
  keys = jax.random.split(jax.random.key(5), 3)
  ids = lambda key, length: jax.random.randint(key, (_B, length), 0, _V)
  return NestedMap(
    src=NestedMap(ids=ids(keys[0], _S), paddings=jnp.zeros((_B, _S))),
    tgt=NestedMap(
      ids=ids(keys[1], _T),
      labels=ids(keys[2], _T),
      paddings=jnp.zeros((_B, _T)),
      weights=jnp.asarray([[1.0, 1, 1], [1, 0, 0]]),
    ),
  )


def _predict_and_score(layer, batch):
  """Returns predictions, metrics and outputs by example."""
  predictions = layer.compute_predictions(batch)
  return predictions, *layer.compute_loss(predictions, batch)


def _both(layer, variables, batch):
  return running.run(layer, variables, batch, method=_predict_and_score)


def test_metrics():
  batch = _batch()
  layer = _model().Instantiate()
  variables = random_variables(layer, batch)
  predictions, metrics, per_example = _both(layer, variables, batch)
  log_probs = np.asarray(predictions.log_probs, np.float64)
  labels, weights = np.asarray(batch.tgt.labels), np.asarray(batch.tgt.weights)
  xent = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0] * weights
  right = (log_probs.argmax(-1) == labels) * weights
  want = {
    'total_loss': (xent.sum() / 4, 4),
    'avg_xent': (xent.sum() / 4, 4),
    'aux_loss': (0, 1),
    'log_pplx': (xent.sum() / 4, 4),
    'fraction_of_correct_next_step_preds': (right.sum() / 4, 4),
    'num_predictions': (4, 1),
  }
  assert set(metrics) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(metrics[name], pair, rtol=1e-5, err_msg=name)
  assert set(per_example) == {'labels', 'scores'}
  np.testing.assert_allclose(per_example.scores, -xent.sum(1), rtol=1e-5)


def test_smoothed_labels_cost_the_other_classes_too():
  batch = _batch()
  layer = _model(
    label_smoothing_prob=0.3, return_predictions=True
  ).Instantiate()
  variables = random_variables(layer, batch)
  predictions, metrics, per_example = _both(layer, variables, batch)
  log_probs = np.asarray(predictions.log_probs, np.float64)
  wanted = np.full(log_probs.shape, 0.3 / (_V - 1))
  np.put_along_axis(wanted, np.asarray(batch.tgt.labels)[..., None], 0.7, -1)
  xent = -(wanted * log_probs).sum(-1) * np.asarray(batch.tgt.weights)
  np.testing.assert_allclose(metrics.total_loss[0], xent.sum() / 4, rtol=1e-5)
  assert per_example.logits.shape == (_B, _T, _V)


def test_packed_batches_bring_segments_and_encodings_are_the_networks():
  cfg = _model()
  cfg.model_tpl.packed_input = True
  batch = _batch()
  for part in (batch.src, batch.tgt):
    part.segment_ids = jnp.ones(part.ids.shape, jnp.int32)
    part.segment_pos = jnp.broadcast_to(
      jnp.arange(part.ids.shape[1]), part.ids.shape
    )
  layer = cfg.Instantiate()
  variables = random_variables(layer, batch)
  run = running.compiled(layer, method=_predict_and_score)
  packed, _, _ = run(variables, batch)
  plain, _, _ = _both(_model().Instantiate(), variables, _batch())
  np.testing.assert_allclose(packed.logits, plain.logits, atol=1e-6)
  batch.tgt.segment_ids = batch.tgt.segment_ids.at[:, 1:].set(2)
  split, _, _ = run(variables, batch)
  assert (split.logits[:, 1:] != plain.logits[:, 1:]).any(-1).all()
  encoded = running.run(layer, variables, batch.src, method='encode')
  assert encoded.embeddings.shape == (_B, _S, 8)
