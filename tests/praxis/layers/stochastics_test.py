# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What is dropped, how often, and that eval drops nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import stochastics

_X = jnp.ones((64, 8, 8))


def _apply(cfg, *args, do_eval=False, seed=0):
  context = base_layer.JaxContext.HParams(do_eval=do_eval)
  with base_layer.JaxContext.new_context(hparams=context):
    return np.asarray(
      cfg.Instantiate().apply({}, *args, rngs=jax.random.key(seed))
    )


def test_dropout_keeps_the_mean():
  y = _apply(stochastics.Dropout.config(keep_prob=0.8), _X)
  assert set(np.unique(y)) == {0.0, np.float32(1 / 0.8)}
  # 4096 draws: the mean has a deviation of 0.008.
  assert abs(y.mean() - 1) < 0.04


def test_dropout_is_fixed_by_its_key():
  cfg = stochastics.Dropout.config(keep_prob=0.5)
  first, again, other = (_apply(cfg, _X, seed=s) for s in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


def test_dropout_is_identity_in_eval_and_with_keep_prob_one():
  cfg = stochastics.Dropout.config(keep_prob=0.5)
  np.testing.assert_array_equal(_apply(cfg, _X, do_eval=True), _X)
  np.testing.assert_array_equal(_apply(stochastics.Dropout.config(), _X), _X)
  always = cfg.set(dropout_at_eval=True)
  assert (_apply(always, _X, do_eval=True) == 0).any()


@pytest.mark.parametrize(
  'fields', [{'noise_shape': [64, 1, 8]}, {'noise_shape_broadcast_dims': [1]}]
)
def test_dropout_shares_its_mask(fields):
  y = _apply(stochastics.Dropout.config(keep_prob=0.5, **fields), _X)
  np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
  assert (y[:, 0] != y[0, 0]).any()


def test_dropout_transposed_mask():
  x = jnp.ones((4, 3, 5))
  cfg = stochastics.Dropout.config(keep_prob=0.5)
  transposed = _apply(cfg.clone().set(transpose_qk=True), x)
  plain = _apply(cfg, jnp.swapaxes(x, 1, 2))
  np.testing.assert_array_equal(transposed, np.swapaxes(plain, 1, 2))


def test_dropout_in_bfloat16():
  y = (
    stochastics.Dropout.config(keep_prob=0.5)
    .Instantiate()
    .apply({}, _X.astype(jnp.bfloat16), rngs=jax.random.key(0))
  )
  assert y.dtype == jnp.bfloat16


@pytest.mark.parametrize('keep_prob', [0.0, -0.1, 1.5])
def test_dropout_refuses_no_probability(keep_prob):
  with pytest.raises(ValueError, match='keep_prob must be in'):
    _apply(stochastics.Dropout.config(keep_prob=keep_prob), _X)


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      {'noise_shape': [3, 64, 8, 8]},
      'noise_shape of .* must broadcast',
    ),
    ({'noise_shape': [64, 2, 8]}, 'noise_shape of .* must broadcast'),
    ({'noise_shape_broadcast_dims': [3]}, 'broadcast_dims must be .* got 3'),
    ({'noise_shape_broadcast_dims': [-4]}, 'broadcast_dims must be .* got -4'),
  ],
)
def test_dropout_refuses_masks_that_do_not_fit(fields, message):
  with pytest.raises(ValueError, match=message):
    _apply(stochastics.Dropout.config(keep_prob=0.5, **fields), _X)


def test_stochastic_residual():
  cfg = stochastics.StochasticResidual.config(
    residual_weight=0.5, survival_prob=0.25
  )
  residual = 2 * jnp.ones_like(_X)
  evaluated = _apply(cfg, _X, residual, do_eval=True)
  np.testing.assert_array_equal(evaluated, 2.0)
  trained = _apply(cfg, _X, residual)
  by_example = trained.reshape(64, -1)
  # An example is kept or dropped as a whole, and scaled when kept.
  assert set(np.unique(by_example)) == {1.0, 5.0}
  np.testing.assert_array_equal(by_example.min(1), by_example.max(1))
