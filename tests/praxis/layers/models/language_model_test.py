# SPDX-License-Identifier: Apache-2.0
"""Metrics, packing, weights and generation of the language model."""

# bazel: size=medium
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import models, transformers
from praxis.layers.models import LanguageModelType
from praxis.nested_map import NestedMap
from tests.testing.layers import random_variables

_B, _T, _V = 2, 6, 13


def _model(repeated=False, logits=True, **fields):
  cfg = models.LanguageModel.config(name='model').set(**fields)
  cfg.lm_tpl.set(
    model_dims=8, vocab_size=_V, record_logits_in_xent_output=logits
  )
  block = cfg.lm_tpl.stacked_transformer_tpl
  block.set(num_layers=1, hidden_dims=16, num_heads=2)
  if repeated:
    cfg.lm_tpl.stacked_transformer_tpl = (
      transformers.StackedTransformerRepeated.config(block=block, x_times=2)
    )
  return cfg


def _batch(**extra):
  keys = jax.random.split(jax.random.key(3))
  return NestedMap(
    ids=jax.random.randint(keys[0], (_B, _T), 0, _V),
    labels=jax.random.randint(keys[1], (_B, _T), 0, _V),
    weights=jnp.asarray([[1.0] * 6, [1, 1, 1, 1, 0, 0]]),
    paddings=jnp.asarray([[0.0] * 6, [0, 0, 0, 0, 1, 1]]),
    **extra,
  )


class _Run:
  """A model with random variables, compiled once a method."""

  def __init__(self, cfg, batch):
    self.layer = cfg.Instantiate()
    self.variables = random_variables(self.layer, batch, scale=0.4)
    self._apply = jax.jit(self.layer.apply, static_argnames='method')

  def __call__(self, batch):
    return self._apply(self.variables, batch)

  def predict(self, batch):
    return self._apply(self.variables, batch, method='compute_predictions')


def test_metrics():
  batch = _batch()
  run = _Run(_model(report_strict_acc=True), batch)
  predictions = run.predict(batch)
  # A row that is right wherever it counts.
  batch.labels = batch.labels.at[1, :4].set(
    predictions.per_example_argmax[1, :4]
  )
  metrics, per_example = run(batch)
  logits = np.asarray(predictions.logits, np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels, weights = np.asarray(batch.labels), np.asarray(batch.weights)
  xent = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
  right = (logits.argmax(-1) == labels) * weights
  loss = (xent * weights).sum() / 10
  want = {
    'total_loss': (loss, 10),
    'avg_xent': (loss, 10),
    'aux_loss': (0, 1),
    'log_pplx': (loss, 10),
    'fraction_of_correct_next_step_preds': (right.sum() / 10, 10),
    'num_predictions': (10, 1),
    'acc_strict': (0.5, 2),
  }
  assert set(metrics) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(metrics[name], pair, rtol=1e-5, err_msg=name)
  np.testing.assert_array_equal(per_example.labels, batch.labels)
  np.testing.assert_allclose(
    per_example.scores, -(xent * weights).sum(1), rtol=1e-5
  )


def test_predictions_can_be_returned_whole():
  batch = _batch()
  run = _Run(_model(logits=False, return_predictions=True), batch)
  _, per_example = run(batch)
  assert per_example.logits.shape == (_B, _T, _V)


def test_eval_sample_weights():
  batch = _batch(eval_sample_weights=jnp.asarray([1.0, 0.0]))
  run = _Run(_model(), batch)
  plain, per_example = run(batch)
  assert plain.num_predictions[0] == 10
  np.testing.assert_array_equal(per_example.eval_sample_weights, [1, 0])
  weighing = _Run(_model(apply_eval_sample_weights=True), batch)
  weighted, _ = weighing(batch)
  alone, _ = weighing(jax.tree.map(lambda x: x[:1], batch))
  assert weighted.num_predictions[0] == 6
  np.testing.assert_allclose(weighted.total_loss, alone.total_loss, rtol=1e-5)


def test_packed_batches():
  cfg = _model()
  cfg.lm_tpl.packed_input = True
  batch = _batch(
    segment_ids=jnp.asarray([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]]),
    segment_pos=jnp.asarray([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 0]]),
  )
  run = _Run(cfg, batch)
  scores = run.predict(batch)
  changed = NestedMap(batch)
  changed.ids = batch.ids.at[0, 0].add(1) % _V
  after = run.predict(changed)
  # The second text of the row does not see the first.
  np.testing.assert_array_equal(scores.logits[0, 3:], after.logits[0, 3:])
  assert (scores.logits[0, :3] != after.logits[0, :3]).any()
  with pytest.raises(ValueError, match="needs 'segment_ids'"):
    run(_batch())


def test_prefix_models_need_their_indicator():
  cfg = _model(model_type=LanguageModelType.PREFIX)
  indicator = jnp.asarray([[1, 1, 1, 0, 0, 0]] * _B)
  batch = _batch(inputs_indicator=indicator)
  run = _Run(cfg, batch)
  before = run.predict(batch)
  changed = NestedMap(batch)
  changed.ids = batch.ids.at[:, 2].add(1) % _V
  after = run.predict(changed)
  assert (before.logits[:, 0] != after.logits[:, 0]).any(-1).all()
  with pytest.raises(ValueError, match="needs 'inputs_indicator'"):
    run(_batch())


def test_tokens_are_counted():
  batch = _batch()
  run = _Run(_model(count_tokens=True), batch)
  before = run.variables['non_trainable']['token_counter']
  apply = functools.partial(run.layer.apply, mutable=[base_layer.NON_TRAINABLE])
  _, updated = jax.jit(apply)(run.variables, batch)
  after = updated['non_trainable']['token_counter']
  name = 'approx_total_tokens_mm'
  np.testing.assert_allclose(after[name] - before[name], 1e-5, rtol=1e-2)


class _Distilled(models.LanguageModel):
  """A loss of its own, which reads the predictions."""

  def compute_loss(self, predictions, input_batch):
    metrics, per_example = super().compute_loss(predictions, input_batch)
    probs = jnp.exp(predictions.log_probs)
    entropy = -jnp.mean(jnp.sum(probs * predictions.log_probs, -1))
    metrics.spread = (jnp.mean(predictions.logits**2), jnp.array(1.0))
    metrics.entropy = (entropy, jnp.array(1.0))
    return metrics, per_example


def test_a_loss_of_a_subclass_reads_logits_and_log_probs():
  cfg = _Distilled.config(name='model', lm_tpl=_model(logits=False).lm_tpl)
  run = _Run(cfg, _batch())
  metrics, _ = run(_batch())
  logits = _Run(_model(), _batch())
  logits.variables = run.variables
  want = np.asarray(logits.predict(_batch()).logits, np.float64)
  log_probs = want - np.log(np.exp(want).sum(-1, keepdims=True))
  np.testing.assert_allclose(metrics.spread[0], np.mean(want**2), rtol=1e-5)
  entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
  np.testing.assert_allclose(metrics.entropy[0], entropy, rtol=1e-5)
