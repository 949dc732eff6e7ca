# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Token samplers have the expected support and frequencies."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.decoding import logit_filters, token_samplers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_PROBS = np.asarray([0.05, 0.4, 0.3, 0.05, 0.2])
_LOGITS = jnp.log(jnp.asarray([_PROBS, _PROBS[::-1]], jnp.float32))
_NUM = 4000


class _Keys:
  """A model with nothing but `next_prng_key`."""

  def __init__(self, key):
    self.key = key

  def next_prng_key(self):
    return self.key


def _frequencies(temperature=1.0, per_example=None, **fields):
  sampler = token_samplers.DefaultNextTokenSampler.config(
    **fields
  ).Instantiate()
  keys = jax.random.split(jax.random.key(0), _NUM)

  def draw(key):
    state = NestedMap()
    per = per_example or {}
    return sampler(_Keys(key), _LOGITS, temperature, state, **per).new_ids

  drawn = np.asarray(running.jit(jax.vmap(draw))(keys))
  assert drawn.dtype == np.int32
  return np.stack([np.bincount(row, minlength=5) / _NUM for row in drawn.T])


def _normal(probs):
  return probs / probs.sum()


def _check(got, want, mirrored=None):
  # 4000 draws: a frequency has a deviation of at most 0.008.
  np.testing.assert_allclose(got[0], want, atol=0.03)
  mirrored = want if mirrored is None else mirrored
  np.testing.assert_allclose(got[1], np.asarray(mirrored)[::-1], atol=0.03)


def test_whole_vocabulary_and_temperature():
  _check(_frequencies(top_k=0), _PROBS)
  _check(_frequencies(top_k=40), _PROBS)
  _check(_frequencies(temperature=0.5, top_k=0), _normal(_PROBS**2))
  _check(_frequencies(temperature=0.0, top_k=0), np.eye(5)[1])
  _check(_frequencies(top_k=1), np.eye(5)[1])
  by_row = jnp.asarray([[1.0], [0.5]])
  _check(_frequencies(by_row, top_k=0), _PROBS, _normal(_PROBS**2))


def test_top_k():
  three = _normal(np.where(_PROBS >= 0.2, _PROBS, 0))
  got = _frequencies(top_k=3)
  _check(got, three)
  assert (got[0][[0, 3]] == 0).all()
  per = {'per_example_top_k': jnp.asarray([9, 1])}
  _check(_frequencies(top_k=3, per_example=per), three, np.eye(5)[1])


def test_examples_lower_a_top_k_of_all_tokens():
  two = _normal(np.where(_PROBS >= 0.3, _PROBS, 0))
  per = {'per_example_top_k': jnp.asarray([2, 1])}
  got = _frequencies(top_k=0, per_example=per)
  _check(got, two, np.eye(5)[1])
  assert (got[0][[0, 3, 4]] == 0).all()
  per = {'per_example_top_k': jnp.asarray([5, 9])}
  _check(_frequencies(top_k=0, per_example=per), _PROBS)
  # As with a top k, the first of equal logits remain.
  top_logits, ids = logit_filters.get_top_k(
    jnp.asarray([[1.0, 2.0, 1.0, 2.0]]), 0, jnp.asarray([3])
  )
  np.testing.assert_array_equal(ids, [[0, 1, 2, 3]])
  np.testing.assert_array_equal(top_logits > 0, [[True, True, False, True]])


@pytest.mark.parametrize(
  'p, kept', [(1e-6, 1), (0.3, 1), (0.5, 2), (0.75, 3), (1.0, 5)]
)
def test_top_p_keeps_the_fewest_that_reach_p(p, kept):
  least = np.sort(_PROBS)[-kept]
  want = np.where(_PROBS >= least, _LOGITS[0], -1e30)
  for given in (p, jnp.asarray([[p]])):
    got = np.asarray(logit_filters.top_p_mask_logits(_LOGITS[:1], given))[0]
    np.testing.assert_array_equal(got > -1e30, want > -1e30)
  ordered = jnp.sort(_LOGITS[:1], axis=-1, descending=True)
  got = logit_filters.top_p_mask_logits(ordered, p, True)
  assert (np.asarray(got) > -1e30).sum() == kept


def test_top_p_within_top_k():
  # Of the top two, the first has 4/7 of the probability.
  _check(_frequencies(top_k=2, top_p=0.5), np.eye(5)[1])
  both = _normal(np.where(_PROBS >= 0.3, _PROBS, 0))
  per = {'per_example_top_p': jnp.asarray([[1.0], [0.5]])}
  _check(_frequencies(top_k=2, per_example=per), both, np.eye(5)[1])


def test_global_normalize_takes_shares_of_the_sum_of_logits():
  # The noise of this key is [-0.4, 1.0, ...]: of the top two, 1 is sampled.
  logits = jnp.asarray([[4.0, 3.5, 1.5, 1, 0]])
  key = next(
    key
    for key in (jax.random.key(i) for i in range(99))
    if jnp.diff(jax.random.gumbel(key, (1, 2)))[0, 0] > 0.5
  )
  for fields, token in [({}, 0), ({'global_normalize': True}, 1)]:
    fields = fields | {'top_k': 2, 'top_p': 0.5}
    ids, _ = token_samplers.sample_from_top_k_and_top_p(
      logits, key, 1.0, **fields
    )
    np.testing.assert_array_equal(ids, [token])
    sampler = token_samplers.DefaultNextTokenSampler(**fields)
    out = sampler(_Keys(key), logits, 1.0, NestedMap())
    np.testing.assert_array_equal(out.new_ids, [token])
  # Without top_k, top_p is a share of the probability.
  sampler = token_samplers.DefaultNextTokenSampler(
    top_k=0, top_p=0.5, global_normalize=True
  )
  out = sampler(_Keys(key), logits, 1.0, NestedMap())
  np.testing.assert_array_equal(out.new_ids, [0])


def test_filters_at_the_temperature():
  # At temperature 0.5 a probability is that of its square: 0.0025, 0.16, 0.09,
  # 0.0025 and 0.04 of 0.295. The first two are 85 % of it, but 70 % at 1.
  squares = _normal(_PROBS**2)
  two = _normal(np.where(_PROBS > 0.2, _PROBS**2, 0))
  three = _normal(np.where(_PROBS > 0.1, _PROBS**2, 0))
  half = functools.partial(_frequencies, 0.5)
  for top_k in (0, 5):
    _check(half(top_k=top_k, filters_at_temperature=True), squares)
    fields = {'top_k': top_k, 'top_p': 0.8}
    _check(half(filters_at_temperature=True, **fields), two)
    _check(half(**fields), three)
  fields = {'filters_at_temperature': True}
  _check(half(top_k=3, **fields), three)
  _check(_frequencies(jnp.full((2, 1), 0.5), top_k=3, **fields), three)
  for temperature in (0.0, None, 1e-4):
    _check(_frequencies(temperature, top_k=0, **fields), np.eye(5)[1])


def test_sorted_logits_keep_the_token_after_a_total_of_p():
  logits = jnp.asarray([[5.0, 3, 2]])
  total = logit_filters.sum_of_logits(logits)
  for is_sorted, num_kept in [(True, 2), (False, 1)]:
    got = logit_filters.top_p_mask_logits(logits, 0.5, is_sorted, total)
    assert (np.asarray(got) > -1e30).sum() == num_kept


def test_epsilon():
  want = _normal(np.where(_PROBS >= 0.25, _PROBS, 0))
  _check(_frequencies(top_k=0, epsilon_p=0.25), want)
  # Never all of them.
  _check(_frequencies(top_k=0, epsilon_p=0.9), np.eye(5)[1])


def test_approximate_top_k_finds_what_it_should():
  logits = jnp.asarray(
    np.random.default_rng(0).permutation(512)[None], jnp.float32
  )
  top, ids = logit_filters.get_top_k(logits, 8, None, 0.9)
  assert np.isin(np.asarray(ids[0]), np.argsort(-logits[0])[:8]).mean() >= 0.75
  np.testing.assert_array_equal(logits[0, ids[0]], top[0])


def test_logprobs_among_the_top_k_and_functions():
  sampler = token_samplers.DefaultNextTokenSampler(
    top_k=2, use_top_k_for_logprobs=True
  )
  out = sampler(_Keys(jax.random.key(1)), _LOGITS, 1.0, NestedMap())
  want = np.log([4 / 7, 3 / 7])
  assert (
    np.isclose(out.logprobs_at_new_ids[:, None], want, atol=1e-5).any(1).all()
  )
  np.testing.assert_array_equal(out.logits, _LOGITS)
  ids, logprobs = token_samplers.sample_from_top_k_and_top_p(
    _LOGITS, jax.random.key(2), 0.0, 3, 0.5
  )
  np.testing.assert_array_equal(ids, [1, 3])
  np.testing.assert_allclose(logprobs, np.log([4 / 9] * 2), atol=1e-5)


def test_a_key_for_each_row():
  raw = jax.random.key_data(jax.random.split(jax.random.key(3), 2))
  noise = token_samplers.gumbel(raw, (2, 5))
  for i in range(2):
    key = jax.random.wrap_key_data(raw[i])
    np.testing.assert_array_equal(noise[i], jax.random.gumbel(key, (5,)))
  with pytest.raises(ValueError, match='one for each of 3 rows'):
    token_samplers.gumbel(raw, (3, 5))


@pytest.mark.parametrize(
  'fields, message',
  [({'top_k': -1}, 'top_k must be >= 0'), ({'top_p': 0.0}, 'top_p must be in')],
)
def test_bad_settings(fields, message):
  with pytest.raises(ValueError, match=message):
    token_samplers.DefaultNextTokenSampler.config(**fields).Instantiate()
  with pytest.raises(ValueError, match='top_k_recall_target must be in'):
    logit_filters.get_top_k(_LOGITS, 2, None, 0.0)
