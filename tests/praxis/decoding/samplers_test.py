# SPDX-License-Identifier: Apache-2.0
"""The next token is drawn from the right tokens, with the right odds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.decoding import samplers

_PROBS = np.asarray([0.05, 0.4, 0.3, 0.05, 0.2])
_LOGITS = jnp.log(jnp.asarray([_PROBS, _PROBS[::-1]], jnp.float32))


def _frequencies(temperature=1.0, num=4000, **fields):
  sampler = samplers.DefaultNextTokenSampler.config(**fields).Instantiate()
  keys = jax.random.split(jax.random.key(0), num)
  draw = jax.jit(jax.vmap(lambda key: sampler(_LOGITS, key, temperature)))
  drawn = np.asarray(draw(keys))
  assert drawn.dtype == np.int32
  return np.stack([np.bincount(row, minlength=5) / num for row in drawn.T])


def _normal(probs):
  return probs / probs.sum()


def _check(got, want):
  # 4000 draws: a frequency has a deviation of at most 0.008.
  np.testing.assert_allclose(got[0], want, atol=0.03)
  np.testing.assert_allclose(got[1], want[::-1], atol=0.03)


def test_whole_vocabulary():
  _check(_frequencies(top_k=0), _PROBS)
  _check(_frequencies(top_k=40), _PROBS)


def test_top_k():
  want = _normal(np.where(_PROBS >= 0.2, _PROBS, 0))
  got = _frequencies(top_k=3)
  _check(got, want)
  assert (got[0][[0, 3]] == 0).all()


@pytest.mark.parametrize('p, kept', [(0.3, 1), (0.5, 2), (0.75, 3), (1.0, 5)])
def test_top_p_keeps_the_fewest_that_reach_p(p, kept):
  least = np.sort(_PROBS)[-kept]
  want = _normal(np.where(_PROBS >= least, _PROBS, 0))
  _check(_frequencies(top_k=0, top_p=p), want)


def test_top_p_counts_within_top_k():
  # Of the top two, the first has 4/7 of the probability.
  _check(_frequencies(top_k=2, top_p=0.5), [0, 1, 0, 0, 0] * np.ones(5))


def test_temperature():
  _check(_frequencies(temperature=0.5, top_k=0), _normal(_PROBS**2))
  _check(_frequencies(temperature=0.0, top_k=0), np.eye(5)[1])
  _check(_frequencies(top_k=1), np.eye(5)[1])


@pytest.mark.parametrize(
  'fields, message',
  [({'top_k': -1}, 'top_k must be >= 0'), ({'top_p': 0.0}, 'top_p must be in')],
)
def test_bad_settings(fields, message):
  with pytest.raises(ValueError, match=message):
    samplers.DefaultNextTokenSampler.config(**fields).Instantiate()
