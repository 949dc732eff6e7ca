# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Masking, loss and metrics of the masked language model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import models, transformers
from praxis.layers.models import LanguageModelType
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _T, _V, _MASK = 2, 6, 9, 8


def _model(**fields):
  cfg = models.BertModel.config(name='bert', mask_token_id=_MASK)
  cfg.lm_tpl.set(
    model_dims=8,
    vocab_size=_V,
    packed_input=True,
    model_type=LanguageModelType.BIDIRECTIONAL,
    record_logits_in_xent_output=True,
    stacked_transformer_tpl=transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=8, num_heads=2
    ),
  )
  return cfg.set(**fields)


def _batch():
  """Three texts in two rows; three tokens are masked."""
  labels = jax.random.randint(jax.random.key(0), (_B, _T), 0, _V - 1)
  where = jnp.asarray([[0.0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]])
  return NestedMap(
    labels=labels,
    paddings=jnp.asarray([[0.0] * 6, [0, 0, 0, 0, 1, 1]]),
    segment_ids=jnp.asarray([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]]),
    segment_pos=jnp.asarray([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 0]]),
    masked_ids=jnp.where(where > 0, _MASK, labels),
    masked_pos=where,
  )


def _both(layer, batch):
  predictions = layer.compute_predictions(batch)
  return predictions, *layer.compute_loss(predictions, batch)


def test_metrics_are_of_masked_tokens():
  batch = _batch()
  layer = _model(label_smoothing_prob=0.2).Instantiate()
  variables = random_variables(layer, batch)
  run = running.jit(lambda x: layer.apply(variables, x, method=_both))
  predictions, metrics, outputs = run(batch)
  logits = np.asarray(predictions.logits, np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels, where = np.asarray(batch.labels), np.asarray(batch.masked_pos)
  wanted = np.full(logits.shape, 0.2 / (_V - 1))
  np.put_along_axis(wanted, labels[..., None], 0.8, -1)
  xent = (-(wanted * log_probs).sum(-1) * where).sum() / 3
  right = ((logits.argmax(-1) == labels) * where).sum() / 3
  want = {
    'total_loss': (xent, 3),
    'avg_xent': (xent, 3),
    'aux_loss': (0, 3),
    'log_pplx': (xent, 3),
    'fraction_of_correct_preds': (right, 3),
    'num_predictions': (3, 1),
    'num_tokens': (10, 1),
    'num_seqs': (3, 1),
  }
  assert set(metrics) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(metrics[name], pair, rtol=1e-5, err_msg=name)
  assert set(outputs) == {
    'per_sequence_xent', 'predicted_labels', 'augmented_labels'
  }  # fmt: skip
  np.testing.assert_array_equal(outputs.augmented_labels, batch.masked_ids)
  # A masked token's own id is nowhere.
  changed = batch.labels.at[0, 1].add(1)
  batch.masked_ids = jnp.where(batch.masked_pos > 0, _MASK, changed)
  again, _, _ = run(batch)
  np.testing.assert_array_equal(again.logits, predictions.logits)


def test_masks_are_drawn():
  batch = _batch()
  layer = _model(force_mask_generation=True).Instantiate()
  variables = random_variables(layer, batch)

  def draw(key):
    predictions = layer.apply(
      variables, batch, method='compute_predictions', rngs={'random': key}
    )
    return predictions.augmented_pos, predictions.augmented_labels

  keys = jax.random.split(jax.random.key(0), 20)
  where, ids = map(np.asarray, running.jit(jax.vmap(draw))(keys))
  assert 0 < where.mean() < 0.4
  assert not (where * np.asarray(batch.paddings)).any()
  kept = where == 0
  same = np.broadcast_to(batch.labels, ids.shape)
  np.testing.assert_array_equal(ids[kept], same[kept])


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'model_type': LanguageModelType.CAUSAL}, 'must be BIDIRECTIONAL'),
    ({'packed_input': False}, 'packed_input must be True'),
  ],
)
def test_impossible_models_are_refused(fields, message):
  cfg = _model()
  cfg.lm_tpl.set(**fields)
  with pytest.raises(ValueError, match=message):
    cfg.Instantiate().abstract_init_with_metadata(_batch())
