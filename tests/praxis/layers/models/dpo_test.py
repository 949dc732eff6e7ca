# SPDX-License-Identifier: Apache-2.0
"""The DPO loss by hand, and gradients of policy and reference."""

# bazel: size=medium
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import models, transformers
from praxis.layers.models import LanguageModelType, dpo_examples
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _T, _V = 2, 4, 7


def _stack(**fields):
  return transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=8, num_heads=2, **fields
  )


def _language_model(**fields):
  cfg = models.LanguageModelDPO.config(name='dpo', beta=0.5).set(**fields)
  for lm in (cfg.mdl, cfg.ref_mdl):
    lm.set(model_dims=8, vocab_size=_V, stacked_transformer_tpl=_stack())
    lm.model_type = cfg.model_type
  return cfg


def _sequence_model():
  cfg = models.SequenceModelDPO.config(name='dpo', beta=0.5)
  cfg.model_tpl.set(
    model_dims=8,
    encoder_stacked_transformer_tpl=_stack(),
    decoder_stacked_transformer_tpl=_stack(
      mask_self_attention=True, use_cross_attention=True
    ),
  )
  cfg.model_tpl.softmax_tpl.num_classes = _V
  return cfg


def _ids(seed):
  return jax.random.randint(jax.random.key(seed), (_B, _T), 0, _V)


_WEIGHTS = {
  'w': jnp.asarray([[0.0, 1, 1, 1], [0, 0, 1, 1]]),
  'l': jnp.asarray([[0.0, 1, 1, 0], [0, 0, 1, 0]]),
}


def _batch():
  batch = NestedMap(eval_sample_weights=jnp.asarray([1.0, 0.25]))
  positions = jnp.broadcast_to(jnp.arange(_T), (_B, _T))
  for seed, (half, weights) in enumerate(_WEIGHTS.items()):
    batch.update({
      f'y_{half}/inputs': _ids(seed),
      f'y_{half}/inputs_indicator': jnp.asarray([[1, 0, 0, 0], [1, 1, 0, 0]]),
      f'y_{half}/labels/ids': _ids(seed + 5),
      f'y_{half}/labels/weights': weights,
      f'y_{half}/paddings': jnp.zeros((_B, _T)),
      f'y_{half}/segment_ids': jnp.ones((_B, _T), jnp.int32),
      f'y_{half}/segment_pos': positions,
    })  # fmt: skip
  return batch


def _sequence_batch():
  batch = NestedMap(inputs=_ids(9), input_paddings=jnp.zeros((_B, _T)))
  for seed, (half, weights) in enumerate(_WEIGHTS.items()):
    batch.update({
      f'targets_{half}': _ids(seed),
      f'targets_{half}/paddings': jnp.zeros((_B, _T)),
      f'targets_{half}/labels/ids': _ids(seed + 5),
      f'targets_{half}/labels/weights': weights,
    })  # fmt: skip
  return batch


def _loss(layer, batch):
  predictions = layer.compute_predictions(batch)
  return predictions, layer.compute_loss(predictions, batch)[0].total_loss


def _by_hand(log_p, weights):
  """The loss of pairs given the log probabilities of answers."""
  ref_w, ref_l, pi_w, pi_l = (np.float64(log_p[name]) for name in _NAMES)
  margin = 0.5 * ((pi_w - ref_w) - (pi_l - ref_l))
  return np.average(np.log1p(np.exp(-margin)), weights=weights)


_NAMES = ('y_w_ref', 'y_l_ref', 'y_w_pi', 'y_l_pi')


def test_a_loss_worked_by_hand():
  def output(*xent):
    return NestedMap(
      per_example_xent=jnp.zeros((2, 1)),
      per_sequence_xent=jnp.asarray(xent, jnp.float32),
    )

  predictions = NestedMap(
    y_w_ref=output(3, 2), y_l_ref=output(4, 2),
    y_w_pi=output(1, 2), y_l_pi=output(6, 3),
  )  # fmt: skip
  layer = _language_model().Instantiate()
  # beta is 0.5; the margins are 0.5 * (2 + 2) = 2 and 0.5 * (0 + 1) = 0.5.
  want = (np.log1p(np.exp(-2)) + np.log1p(np.exp(-0.5))) / 2

  def run(predictions):
    return layer.apply(
      {},
      predictions,
      NestedMap(),
      method='compute_loss',
      mutable=[base_layer.SUMMARIES],
    )

  (metrics, _), collected = run(predictions)
  np.testing.assert_allclose(metrics.total_loss, (want, 2), rtol=1e-6)
  got = collected[base_layer.SUMMARIES]
  for name, value in {
    'dpo/r_hat_y_w': 0.5,
    'dpo/r_hat_y_l': -0.75,
    'dpo/delta_r_hat': 1.25,
    'dpo/delta_r_hat_std': 0.75,
    'dpo/y_w_pi_log_p': -1.5,
    'dpo/dpo_loss': want,
  }.items():
    np.testing.assert_allclose(got[f'{name}_scalar'], value, rtol=1e-6)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), predictions)
  with pytest.raises(ValueError, match='must be float32 for DPO'):
    run(half)


def test_weights_of_bfloat16_batches_count_exactly():
  pairs, counted = 403, 301
  xent = np.random.default_rng(0).normal(size=(4, pairs)).astype(np.float32)
  predictions = NestedMap()
  for name, values in zip(_NAMES, xent, strict=True):
    predictions[name] = NestedMap(
      per_example_xent=jnp.zeros((pairs, 1)),
      per_sequence_xent=jnp.asarray(values),
    )
  weights = jnp.arange(pairs) < counted
  layer = _language_model(apply_eval_sample_weights=True).Instantiate()
  batch = NestedMap(eval_sample_weights=weights.astype(jnp.bfloat16))
  metrics, _ = layer.apply({}, predictions, batch, method='compute_loss')
  log_p = dict(zip(_NAMES, -xent, strict=True))
  want = _by_hand(log_p, np.asarray(weights, np.float64))
  np.testing.assert_allclose(metrics.total_loss, (want, counted), rtol=1e-6)


def test_padding_has_no_part_in_summaries_and_metrics():
  xent = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
  weights = np.array([1, 1, 0, 1, 0], np.float32)
  predictions = NestedMap()
  for name, values in zip(_NAMES, xent, strict=True):
    predictions[name] = NestedMap(
      per_example_xent=jnp.zeros((5, 1)), per_sequence_xent=jnp.asarray(values)
    )
  layer = _language_model(apply_eval_sample_weights=True).Instantiate()
  (metrics, _), collected = layer.apply(
    {},
    predictions,
    NestedMap(eval_sample_weights=jnp.asarray(weights)),
    method='compute_loss',
    mutable=[base_layer.SUMMARIES],
  )
  ref_w, ref_l, pi_w, pi_l = -xent[:, weights > 0]
  margin = 0.5 * ((pi_w - ref_w) - (pi_l - ref_l))
  assert 0 < (margin > 0).mean() < 1
  for name, value in {
    'dpo/y_l_ref_log_p': ref_l.mean(),
    'dpo/r_hat_y_w': 0.5 * (pi_w - ref_w).mean(),
    'dpo/delta_r_hat': margin.mean(),
    'dpo/delta_r_hat_std': margin.std(),
    '_dpo_topline/p_correct_ranking': (1 / (1 + np.exp(-margin))).mean(),
  }.items():
    got = collected[base_layer.SUMMARIES][f'{name}_scalar']
    np.testing.assert_allclose(got, value, rtol=1e-5)
  np.testing.assert_allclose(
    metrics.reward_margin, (margin.mean(), 3), rtol=1e-5
  )
  np.testing.assert_allclose(
    metrics.reward_accuracy, ((margin > 0).mean(), 3), rtol=1e-6
  )


@pytest.mark.parametrize(
  'cfg, batch, names, weights',
  [
    (
      _language_model(apply_eval_sample_weights=True),
      _batch(),
      ('mdl', 'ref_mdl'),
      (1, 0.25),
    ),
    (_sequence_model(), _sequence_batch(), ('model', 'ref_model'), (1, 1)),
  ],
  ids=['language', 'sequence'],
)
def test_only_the_policy_learns(cfg, batch, names, weights):
  layer = cfg.Instantiate()
  variables = random_variables(layer, batch)
  params, rest = variables['params'], dict(variables)
  del rest['params']
  assert set(params) == set(names)

  def loss(params):
    predictions, (value, weight) = layer.apply(
      {'params': params} | rest, batch, method=_loss
    )
    sums = {name: -predictions[name].per_sequence_xent for name in _NAMES}
    return value, (weight, sums)

  (got, (weight, log_p)), gradient = running.jit(
    jax.value_and_grad(loss, has_aux=True)
  )(params)
  assert weight == sum(weights)
  np.testing.assert_allclose(got, _by_hand(log_p, weights), rtol=1e-5)
  largest = lambda tree: max(float(jnp.abs(x).max()) for x in tree)
  assert largest(jax.tree.leaves(gradient[names[0]])) > 1e-3
  assert largest(jax.tree.leaves(gradient[names[1]])) == 0


def test_weights_of_pairs_have_to_be_there():
  layer = _language_model(apply_eval_sample_weights=True).Instantiate()
  with pytest.raises(ValueError, match='eval_sample_weights'):
    layer.apply({}, NestedMap(), NestedMap(), method='compute_loss')


def test_a_prefix_model_sees_all_of_the_prompt():
  batch = _batch()
  causal = _language_model().Instantiate()
  prefix = _language_model(model_type=LanguageModelType.PREFIX).Instantiate()
  variables = random_variables(causal, batch)
  half = dpo_examples.DPOExample.from_feature_converter(batch).y_w
  half.inputs_indicator = None
  with pytest.raises(ValueError, match="needs 'inputs_indicator', got None"):
    prefix._causal_mask(half)
  for half in 'wl':
    batch[f'y_{half}/inputs_indicator'] = jnp.asarray([[1, 1, 0, 0]] * _B)

  def policy(layer, batch):
    return layer.compute_predictions(batch).y_w_pi.per_example_xent

  xents = [
    running.run(layer, variables, batch, method=policy)
    for layer in (causal, prefix)
  ]
  assert (xents[0][:, 0] != xents[1][:, 0]).all()


def test_a_batch_of_sources_and_targets_is_evaluated():
  layer, batch = _sequence_model().Instantiate(), _sequence_batch()
  variables = random_variables(layer, batch)
  part = NestedMap(
    ids=_ids(1),
    paddings=jnp.zeros((_B, _T)),
    labels=_ids(2),
    weights=_WEIGHTS['w'],
  )
  predictions, loss = running.run(
    layer, variables, NestedMap(src=part, tgt=part), method=_loss
  )
  np.testing.assert_allclose(loss, (predictions.avg_xent, 5), rtol=1e-6)


def test_the_reference_has_no_dropout():
  cfg = _language_model()
  for lm in (cfg.mdl, cfg.ref_mdl):
    lm.stacked_transformer_tpl.dropout_prob = 0.5
  model = cfg.Instantiate()
  variables = random_variables(model, _batch())

  run = running.compiled(model, method='compute_predictions', mutable=True)

  def predictions(seed):
    rngs = {'random': jax.random.key(seed)}
    return run(variables, _batch(), rngs=rngs)[0]

  first, second = predictions(0), predictions(1)
  for name in ('y_w', 'y_l'):
    policy, reference = (
      [
        np.asarray(x[f'{name}_{kind}'].per_example_xent)
        for x in (first, second)
      ]
      for kind in ('pi', 'ref')
    )
    assert np.abs(policy[0] - policy[1]).max() > 0.01
    np.testing.assert_array_equal(*reference)
