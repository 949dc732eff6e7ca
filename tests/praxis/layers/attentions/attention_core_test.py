# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Functions of the attention core against their definitions."""

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


def test_gradients_of_extra_logits_are_those_of_further_logits():
  logits, cotangent = running.normal(2, 3, 4, seed=1), running.normal(2, 3, 4)
  extra = jnp.array([[0.5], [-30.0], [3.0]])

  def as_further_logits(logits, extra):
    wide = jnp.broadcast_to(extra, (*logits.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([logits, wide], -1))[..., :-1]

  got, pull = jax.vjp(attention_core.softmax, logits, extra)
  want, pull_want = jax.vjp(as_further_logits, logits, extra)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  for a, b in zip(pull(cotangent), pull_want(cotangent), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
  # Of the extra logits alone.
  (alone,) = jax.vjp(lambda x: attention_core.softmax(logits, x), extra)[1](
    cotangent
  )
  np.testing.assert_array_equal(alone, pull(cotangent)[1])


def test_gradient_keeps_the_probabilities_only():
  logits = running.normal(2, 3)
  probs, pull = jax.vjp(attention_core.softmax, logits)
  kept = [x for x in jax.tree.leaves(pull) if x.shape == logits.shape]
  assert kept
  for x in kept:
    np.testing.assert_array_equal(x, probs)


@pytest.mark.parametrize('num_kv_heads', [0, 1, 2, 4])
def test_heads_share_keys_in_consecutive_groups(num_kv_heads):
  query = running.normal(2, 3, 4, 5)
  shape = (2, 6, num_kv_heads, 5) if num_kv_heads else (2, 6, 5)
  key = running.normal(*shape, seed=1)
  per_head = key if num_kv_heads else key[:, :, None]
  per_head = np.repeat(per_head, 4 // per_head.shape[2], axis=2)
  logits = attention_core.dot_product_logits(jnp.einsum, query, key)
  want = np.einsum('btnh,bsnh->bnts', query, per_head)
  np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-6)
  encoded = attention_core.attend_to_values(jnp.einsum, logits, key)
  want = np.einsum('bnts,bsnh->btnh', want, per_head)
  np.testing.assert_allclose(encoded, want, rtol=1e-5, atol=1e-5)


def test_folded_samples_attend_to_their_example():
  query = running.normal(6, 2, 4, 5)
  key, value = running.normal(3, 7, 4, 5, seed=1), running.normal(3, 7, 4, 5)
  mask, bias = running.normal(6, 1, 2, 7), running.normal(1, 4, 1, 7, seed=2)

  def attend(inputs):
    logits = attention_core.dot_product_logits(
      jnp.einsum, inputs.query, inputs.key
    )
    probs = logits + inputs.mask + inputs.bias
    encoded = attention_core.attend_to_values(jnp.einsum, probs, inputs.value)
    return encoded, probs

  inputs = attention_core.AttentionInputs(query, key, value, mask, bias)
  got = attention_core.attend_with_folded_samples(attend, inputs)
  want = attend(inputs.repeat_keys())
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
