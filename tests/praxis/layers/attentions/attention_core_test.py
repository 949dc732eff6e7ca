# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The masked softmax against its definition, and its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import attentions
from praxis.layers.attentions import attention_core
from tests.praxis.layers import running


def test_softmax_sees_only_the_visible():
  logits = jnp.array([[1.0, 2.0, 3.0], [1.0, 1.0, 5.0]])
  mask = attentions.additive_mask(
    jnp.array([[False, False, True]] * 2), jnp.float32
  )
  probs = attention_core.masked_softmax(logits, mask)
  want = np.exp([[1, 2], [1, 1]]) / np.exp([[1, 2], [1, 1]]).sum(1)[:, None]
  np.testing.assert_allclose(probs[:, :2], want, rtol=1e-6)
  np.testing.assert_array_equal(probs[:, 2], 0)


@pytest.mark.parametrize('zero', [False, True])
def test_softmax_of_rows_that_see_nothing(zero):
  mask = attentions.additive_mask(
    jnp.array([[True, True], [True, False]]), jnp.float32
  )
  logits = jnp.array([[1.0, 3.0], [1.0, 3.0]])
  probs = attention_core.masked_softmax(logits, mask, zero_fully_masked=zero)
  np.testing.assert_allclose(probs[0], 0.0 if zero else 0.5)
  np.testing.assert_allclose(probs[1], [0.0, 1.0])


@pytest.mark.parametrize('extra', [0.0, 40.0, -3.0])
def test_softmax_with_an_extra_logit(extra):
  logits = jnp.array([[1.0, 30.0, -2.0]], jnp.bfloat16)
  mask = jnp.zeros((1, 3))
  probs = attention_core.masked_softmax(logits, mask, extra_logit=extra)
  assert probs.dtype == jnp.float32
  exps = np.exp(np.asarray(logits, np.float64))
  np.testing.assert_allclose(
    probs, exps / (exps.sum() + np.exp(extra)), rtol=1e-5
  )


@pytest.mark.parametrize('extra', [None, 0.5])
def test_gradient_is_that_of_the_definition(extra):
  logits, cotangent = running.normal(2, 3, seed=1), running.normal(2, 3, seed=2)
  mask = attentions.additive_mask(
    jnp.array([[False, False, True]] * 2), jnp.float32
  )
  probs, pull = jax.vjp(
    lambda x: attention_core.masked_softmax(x, mask, extra_logit=extra), logits
  )
  (got,) = pull(cotangent)
  # Of p_i by x_j: p_i (1 if i = j else 0) - p_i p_j.
  p = np.asarray(probs, np.float64)
  jacobian = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
  want = np.einsum('bi,bij->bj', cotangent, jacobian)
  np.testing.assert_allclose(got, want, atol=1e-6)
  np.testing.assert_array_equal(got[:, 2], 0)


def test_gradient_keeps_the_probabilities_only():
  logits = running.normal(2, 3)
  probs, pull = jax.vjp(attention_core.softmax, logits)
  kept = [x for x in jax.tree.leaves(pull) if x.shape == logits.shape]
  assert kept
  for x in kept:
    np.testing.assert_array_equal(x, probs)
