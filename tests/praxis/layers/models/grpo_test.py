# SPDX-License-Identifier: Apache-2.0
"""The loss of GRPO in numpy, its gradients, and the reference."""

# bazel: size=medium
from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly
from tests.testing.layers import random_variables

_B, _T, _V = 3, 5, 7
# Two tokens, three tokens, and a sample without one.
_WEIGHTS = np.array(
  [[0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], np.float32
)
_ADVANTAGES = np.array([1.5, -0.5, 2.0], np.float32)


def _model(cls=models.LanguageModelGRPO, dropout_prob=0.0, **fields):
  cfg = cls.config(name='lm').set(**fields)
  cfg.lm_tpl.set(
    model_dims=8,
    vocab_size=_V,
    stacked_transformer_tpl=transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=8, num_heads=2, dropout_prob=dropout_prob
    ),
  )
  return cfg.Instantiate()


def _ids(seed):
  return jax.random.randint(jax.random.key(seed), (_B, _T), 0, _V)


def _batch(**fields):
  return NestedMap(
    ids=_ids(0),
    labels=_ids(1),
    weights=jnp.asarray(_WEIGHTS),
    paddings=jnp.zeros((_B, _T)),
    **fields,
  )


def _rewarded_batch():
  return _batch(advantages=jnp.asarray(_ADVANTAGES))


def _apply(model, variables, batch):
  with base_layer.JaxContext.new_context():
    (metrics, _), _ = model.apply(variables, batch, mutable=True)
  return metrics


def _run(model, variables, batch, **kwargs):
  return running.run(model, variables, batch, mutable=True, **kwargs)[0]


@functools.cache
def _plain():
  """Returns a language model that returns its logits, compiled."""
  model = _model(models.LanguageModel, return_predictions=True)
  return running.compiled(model, mutable=True)


def _log_probs(model, variables, network='lm', temperature=1.0):
  """Returns those of the labels by the logits of a network, [B, T]."""
  params = variables['params'][network]
  (_, out), _ = _plain()({'params': {'lm': params}}, _batch())
  logits = np.asarray(out.logits, np.float64) / temperature
  log_z = np.log(np.exp(logits).sum(-1, keepdims=True))
  labels = np.asarray(_ids(1))[..., np.newaxis]
  return np.take_along_axis(logits - log_z, labels, axis=-1)[..., 0]


def _mean(values, loss_mean):
  if loss_mean == 'tokens':
    return np.sum(values * _WEIGHTS) / _WEIGHTS.sum()
  if loss_mean == 'max_length':
    return np.sum(values * _WEIGHTS) / (_B * 4)
  by_sample = [np.sum(values[i] * _WEIGHTS[i]) / n for i, n in ((0, 2), (1, 3))]
  return np.mean(by_sample)


@pytest.mark.parametrize(
  ('beta', 'loss_mean', 'temperature'),
  nightly.except_for(
    [(0.3, 'tokens', 0.6), (0.0, 'samples', 1.0)],
    itertools.product(
      (0.0, 0.3), ('tokens', 'samples', 'max_length'), (1.0, 0.6)
    ),
  ),
)
def test_the_loss_is_that_of_the_paper(beta, loss_mean, temperature):
  model = _model(
    beta=beta,
    loss_mean=loss_mean,
    max_response_len=4,
    temperature=temperature,
    # The last chunk is shorter.
    chunk_size=2,
  )
  variables = random_variables(model, _rewarded_batch())
  metrics, _ = _run(model, variables, _rewarded_batch())
  # The policy of the samples is that of the step: the ratio is 1.
  losses = np.broadcast_to(-_ADVANTAGES[:, np.newaxis], (_B, _T))
  if beta:
    new, reference = (
      _log_probs(model, variables, name, temperature)
      for name in ('lm', 'ref_lm')
    )
    ratio = np.exp(reference - new)
    divergence = ratio - np.log(ratio) - 1
    losses = losses + beta * divergence
    np.testing.assert_allclose(
      metrics.kl[0], _mean(divergence, 'tokens'), rtol=1e-4
    )
  loss, weight = metrics.total_loss
  np.testing.assert_allclose(loss, _mean(losses, loss_mean), rtol=1e-4)
  assert weight == {'tokens': 5, 'samples': 2, 'max_length': 3}[loss_mean]


@functools.cache
def _weighted_gradients():
  """Returns the gradients of weighted log-probabilities, compiled."""
  plain = _model(models.LanguageModel)

  def weighted_xent(params, weights):
    batch = _batch()
    batch.weights = weights
    metrics = _apply(plain, {'params': params}, batch)
    # Its mean is over the sum of the weights.
    return metrics.total_loss[0] * weights.sum() / _WEIGHTS.sum()

  return running.jit(jax.grad(weighted_xent))


def _check_gradients(grads, params, factors):
  """Compares with those of the log-probabilities of tokens times factors."""
  weights = jnp.asarray(factors * _WEIGHTS, jnp.float32)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
    grads,
    _weighted_gradients()(params, weights),
  )


def test_gradients_are_those_of_weighted_log_probabilities():
  model = _model()
  variables = random_variables(model, _rewarded_batch())

  def loss(params):
    return _apply(model, {'params': params}, _rewarded_batch()).total_loss[0]

  params = variables['params']
  grads = running.jit(jax.grad(loss))(params)
  _check_gradients(grads, params, _ADVANTAGES[:, np.newaxis])


@pytest.mark.parametrize('dtype', [jnp.bfloat16, *nightly.cases(jnp.float32)])
def test_the_ratio_is_that_at_the_temperature_of_the_samples(dtype):
  model = _model(temperature=0.5, chunk_size=2, fprop_dtype=dtype)
  variables = random_variables(model, _rewarded_batch())
  batch = _rewarded_batch()
  plain = _model(
    models.LanguageModel, return_predictions=True, fprop_dtype=dtype
  )
  cast = lambda params: jax.tree.map(lambda x: x.astype(dtype), params)

  def log_probs(params):
    (_, out), _ = plain.apply({'params': cast(params)}, batch, mutable=True)
    logits = out.logits.astype(jnp.float32) / 0.5
    picked = jnp.take_along_axis(logits, batch.labels[..., None], axis=-1)
    return picked[..., 0] - jax.nn.logsumexp(logits, axis=-1)

  def loss(params):
    metrics = _apply(model, {'params': cast(params)}, batch)
    return metrics.total_loss[0], metrics

  def expected_loss(params, old):
    new = log_probs(params)
    ratio = jnp.exp(new - old)
    limited = jnp.clip(ratio, 0.8, 1.2)
    values = jnp.asarray(_ADVANTAGES)[:, None]
    gains = jnp.minimum(values * ratio, values * limited)
    return -jnp.sum(gains * _WEIGHTS) / _WEIGHTS.sum(), new

  params = variables['params']
  old = _run(model, {'params': cast(params)}, batch, method='token_log_probs')
  tolerance = 1e-5 if dtype == jnp.float32 else 0.02
  expected, new = running.jit(jax.grad(expected_loss, has_aux=True))(
    params, old
  )
  np.testing.assert_allclose(old, new, atol=tolerance)
  batch.old_log_probs = old
  (_, metrics), grads = running.jit(jax.value_and_grad(loss, has_aux=True))(
    params
  )
  # The policy of the step is that of the samples.
  assert metrics.old_policy_kl[0] < 1e-12
  assert metrics.clipped_fraction[0] == 0
  largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
  assert largest > 0.05
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance * largest),
    grads,
    expected,
  )


def test_the_divergence_pulls_to_the_reference_which_has_no_gradient():
  model = _model(beta=0.5)
  batch = _batch(advantages=jnp.zeros(_B))
  variables = random_variables(model, batch)

  def loss(params):
    metrics = _apply(model, {'params': params}, batch)
    return metrics.total_loss[0], metrics

  run = running.jit(jax.grad(loss, has_aux=True))
  params = variables['params']
  grads, _ = run(params)
  assert not any(np.any(x) for x in jax.tree.leaves(grads['ref_lm']))
  step = jax.tree.map(lambda x, g: x - 0.05 * g, params['lm'], grads['lm'])

  def divergence(params):
    return float(run(params)[1].kl[0])

  before, after = (
    divergence({**params, 'lm': x}) for x in (params['lm'], step)
  )
  assert 0 < after < before
  assert divergence({**params, 'lm': params['ref_lm']}) == 0.0


def test_a_batch_without_advantages_has_the_loss_of_a_language_model():
  model = _model(beta=0.3)
  variables = random_variables(model, _rewarded_batch())
  plain = _model(models.LanguageModel)
  expected, _ = _run(
    plain, {'params': {'lm': variables['params']['lm']}}, _batch(), do_eval=True
  )
  metrics, _ = _run(model, variables, _batch(), do_eval=True)
  assert metrics.total_loss == expected.total_loss
  assert 'kl' not in metrics


def test_the_reference_has_no_dropout():
  model = _model(beta=0.3, dropout_prob=0.5)
  variables = random_variables(model, _rewarded_batch())
  run = running.compiled(model, method='compute_predictions', mutable=True)

  def ref_log_probs(seed):
    rngs = {'random': jax.random.key(seed)}
    predictions, _ = run(variables, _rewarded_batch(), rngs=rngs)
    return predictions.per_example_xent, predictions.ref_log_probs

  (policy, reference), (other_policy, other_reference) = map(
    ref_log_probs, (0, 1)
  )
  assert np.abs(policy - other_policy).max() > 0.01
  np.testing.assert_array_equal(reference, other_reference)
  np.testing.assert_allclose(
    reference, _log_probs(_model(), variables, 'ref_lm'), rtol=1e-4
  )


def _old_log_probs(log_probs):
  """Returns those of another policy; ratios of sampled tokens: 0.5 to 1.9."""
  log_ratios = np.array(
    [[5, -0.1, 0.6, 5, 5], [200, 0, 0.65, -0.1, -0.7], [0, 0, 0, 0, 0]]
  )
  return (log_probs - log_ratios).astype(np.float32)


@pytest.mark.parametrize('ratio_level', ['token', 'sequence'])
def test_the_ratio_to_an_older_policy_is_clipped(ratio_level):
  model = _model(
    ratio_level=ratio_level, clip_ratio_low=0.1, clip_ratio_high=0.25
  )
  variables = random_variables(model, _rewarded_batch())
  log_probs = _log_probs(model, variables)
  old = _old_log_probs(log_probs)
  batch = _rewarded_batch()
  batch.old_log_probs = jnp.asarray(old)

  def loss(params):
    metrics = _apply(model, {'params': params}, batch)
    return metrics.total_loss[0], metrics

  params = variables['params']
  (value, metrics), grads = running.jit(jax.value_and_grad(loss, has_aux=True))(
    params
  )
  log_ratios = log_probs - old
  if ratio_level == 'sequence':
    sums = np.sum(log_ratios * _WEIGHTS, axis=1) / [2, 3, 1]
    log_ratios = np.repeat(sums[:, np.newaxis], _T, axis=1)
  ratios = np.exp(np.where(_WEIGHTS > 0, log_ratios, 0.0))
  losses = np.zeros((_B, _T))
  clipped = np.zeros((_B, _T))
  for row, advantage in enumerate(_ADVANTAGES):
    for column, ratio in enumerate(ratios[row]):
      limited = min(max(ratio, 0.9), 1.25)
      # The pessimistic one of both.
      losses[row, column] = max(-advantage * ratio, -advantage * limited)
      is_too_good = ratio > 1.25 if advantage > 0 else ratio < 0.9
      clipped[row, column] = is_too_good
  np.testing.assert_allclose(value, _mean(losses, 'tokens'), rtol=1e-4)
  np.testing.assert_allclose(
    metrics.clipped_fraction[0], _mean(clipped, 'tokens'), rtol=1e-6
  )
  gaps = np.where(_WEIGHTS > 0, log_probs - old, 0.0)
  np.testing.assert_allclose(
    metrics.old_policy_kl[0],
    _mean(np.exp(gaps) - gaps - 1, 'tokens'),
    rtol=1e-4,
  )
  assert 0 < clipped[_WEIGHTS > 0].sum() < 5
  # Clipped ratios have no gradient, others that of the log-probability. That
  # of a sequence is a mean over its tokens, and counts for each of them.
  factors = _ADVANTAGES[:, np.newaxis] * ratios * (1 - clipped)
  _check_gradients(grads, params, factors)


@pytest.mark.parametrize(
  'fields', [{'loss_mean': 'words'}, {'ratio_level': 'words'}]
)
def test_unknown_values_are_refused(fields):
  model = _model(**fields)
  with pytest.raises(ValueError, match='words'):
    model.init(jax.random.key(0), _rewarded_batch())


def test_the_length_of_the_longest_response_is_needed_for_its_mean():
  model = _model(loss_mean='max_length')
  with pytest.raises(ValueError, match='max_response_len, got None'):
    model.init(jax.random.key(0), _rewarded_batch())


def test_rows_that_fill_a_batch_are_no_samples():
  model = _model(
    loss_mean='max_length', max_response_len=4, apply_eval_sample_weights=True
  )
  batch = _rewarded_batch()
  batch.eval_sample_weights = jnp.asarray([1.0, 0.0, 1.0])
  variables = random_variables(model, batch)
  metrics, _ = _run(model, variables, batch)
  loss, weight = metrics.total_loss
  # Two tokens of the first sample.
  assert float(loss) == pytest.approx(-1.5 * 2 / 4 / 2)
  assert weight == 2


class _Rewards:
  """An input that rewards the length of a response, by the prompt."""

  def ids_to_strings(self, ids, lengths, key=None):
    return [
      '.'.join(map(str, x[:n])) for x, n in zip(ids, lengths, strict=True)
    ]

  def rewards(self, prompt_indices, responses):
    lengths = [len(x.split('.')) for x in responses]
    return {'reward': np.asarray(prompt_indices) * 10.0 + lengths}


def test_decoded_responses_are_rewarded():
  model = _model()
  out = NestedMap(
    ids=np.zeros((2, 2), np.int32),
    prefix_ids=np.zeros((2, 2), np.int32),
    output_ids=np.arange(12, dtype=np.int32).reshape(2, 1, 6),
    logprobs=np.zeros((2, 1, 6)),
    prefix_lengths=np.array([2, 1]),
    original_lengths=np.array([2, 1]),
    decode_lengths=np.array([[5], [3]]),
    eval_sample_weights=np.array([1.0, 0.0]),
    prompt_index=np.array([4, 3]),
  )
  metrics, [(_, result)], _ = model.process_decode_out(_Rewards(), out)
  # The second row only fills the batch.
  assert result.rewards == {'reward': 43.0}
  assert metrics.reward == (43.0, 1.0)
