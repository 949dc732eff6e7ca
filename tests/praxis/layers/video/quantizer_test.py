# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Quantizers of numbers and of signs against numpy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.video import quantizer
from tests.praxis.layers.running import build, jit, normal, run
from tests.testing import numpy_layers


@pytest.mark.parametrize('method', ['sine', 'tanh'])
@pytest.mark.parametrize('do_eval', [False, True])
def test_scalars_are_rounded(method, do_eval):
  widths = (5, 4, 3)
  x = 3.0 * normal(2, 4, 3)
  cfg = quantizer.ScalarQuantizer.config(dim_widths=widths, bound_method=method)
  layer, variables = build(cfg, x)
  values, out = run(layer, variables, x, do_eval=do_eval)
  bound = (np.sin if method == 'sine' else np.tanh)(np.asarray(x, np.float64))
  # 5 values are -2 to 2, 4 are -2 to 1 and have their middle at -0.5.
  middle = np.asarray([0.0, -0.5, 0.0])
  raw = bound * np.asarray(widths) * 0.999 / 2
  digits = np.clip(np.round(raw + middle), [-2, -2, -1], [2, 1, 1])
  np.testing.assert_allclose(out.raw, raw, atol=1e-5)
  np.testing.assert_allclose(values, digits - middle, atol=1e-5)
  np.testing.assert_array_equal(out.quantized, values)
  a, b, c = np.moveaxis(digits + [2, 2, 1], -1, 0)
  np.testing.assert_array_equal(out.encoding_indices, (a * 4 + b) * 3 + c)
  decoded = run(layer, variables, out.encoding_indices, method=layer.decode_ids)
  np.testing.assert_allclose(decoded, digits - middle, atol=1e-6)
  assert out.quantizer_loss == 0


def test_rounding_has_the_gradient_of_the_bound():
  x = normal(2, 8)
  layer, variables = build(quantizer.ScalarQuantizer.config(), x)
  grad = jit(jax.grad(lambda x: layer.apply(variables, x)[0].sum()))(x)
  widths = np.asarray([8, 8, 4, 4, 4, 4, 4, 4])
  want = np.cos(np.asarray(x)) * widths * 0.999 / 2
  np.testing.assert_allclose(grad, want, rtol=1e-4, atol=1e-5)


def test_all_tokens_decode_to_different_values():
  layer = quantizer.ScalarQuantizer.config(
    dim_widths=(3, 2, 4), name='q'
  ).Instantiate()
  values = layer.apply({}, jnp.arange(24), method=layer.decode_ids)
  assert len(np.unique(values, axis=0)) == 24
  as_floats = layer.apply({}, jnp.arange(24.0), method=layer.decode_ids)
  np.testing.assert_array_equal(as_floats, values)


def _entropy(p):
  return -np.sum(p * np.log(p + 1e-5), axis=-1)


def _exact(x, temperature, hard=False):
  """Entropy of samples less that of the batch, over all sign vectors."""
  signs = np.asarray(list(itertools.product([-1, 1], repeat=x.shape[-1])))
  p = numpy_layers.softmax(
    2 * x.reshape(-1, x.shape[-1]) @ signs.T / temperature
  )
  counted = np.eye(p.shape[-1])[p.argmax(-1)] if hard else p
  return -np.mean(np.sum(counted * np.log(p), -1)) - _entropy(counted.mean(0))


def _by_groups(x, temperature, size, balance):
  """The entropy of the batch as the mean over two ways to make groups."""
  flat = x.reshape(-1, x.shape[-1]) / temperature
  dims = flat.shape[-1]
  p = numpy_layers.softmax(np.stack([2 * flat, -2 * flat], -1))
  sample = -np.mean(np.sum(p * np.log(p), (1, 2)))
  count = dims // size
  near = [list(range(i * size, (i + 1) * size)) for i in range(count)]
  apart = [list(range(i, dims, count)) for i in range(count)]
  batch = []
  for group in near + (apart if size > 1 else []):
    joint = [
      np.mean(
        np.prod([p[:, d, c] for d, c in zip(group, choice, strict=True)], 0)
      )
      for choice in itertools.product([0, 1], repeat=size)
    ]
    batch.append(_entropy(np.asarray(joint)))
  return sample - balance * np.mean(batch)


@pytest.mark.parametrize(
  'fields, entropy',
  [
    ({}, lambda x: _exact(x, 0.7)),
    ({'entropy_loss_type': 'argmax'}, lambda x: _exact(x, 0.7, hard=True)),
    (
      {'entropy_loss_groups': 2, 'entropy_loss_balance': 0.5},
      lambda x: _by_groups(x, 0.7, 2, 0.5),
    ),
    ({'entropy_loss_groups': 4}, lambda x: _by_groups(x, 0.7, 1, 1.0)),
    ({'entropy_loss_ratio': 0.0}, lambda x: 0.0),
  ],
)
def test_signs_and_losses(fields, entropy):
  x = normal(2, 3, 4)
  cfg = quantizer.LookupFreeQuantizer.config(
    embedding_dim=4, entropy_temperature=0.7, **fields
  )
  layer, variables = build(cfg, x)

  def train(x):
    signs, out = layer.apply(variables, x)
    return out.quantizer_loss, (signs, out)

  grad, (signs, out) = jit(jax.grad(train, has_aux=True))(x)
  x = np.asarray(x, np.float64)
  np.testing.assert_allclose(signs, np.where(x >= 0, 1, -1), atol=1e-6)
  bits = np.asarray(x >= 0) @ [1, 2, 4, 8]
  np.testing.assert_array_equal(out.encoding_indices, bits)
  away = lambda x: 0.25 * np.mean((np.where(x >= 0, 1, -1) - x) ** 2)
  ratio = fields.get('entropy_loss_ratio', 0.1)
  np.testing.assert_allclose(out.e_latent_loss, away(x), rtol=1e-5)
  np.testing.assert_allclose(
    out.entropy_loss, ratio * entropy(x), rtol=1e-3, atol=1e-5
  )
  np.testing.assert_allclose(
    out.quantizer_loss, out.e_latent_loss + out.entropy_loss, rtol=1e-6
  )
  if 'entropy_loss_type' in fields:
    return  # Its gradient is that of other numbers than its value.
  total = lambda x: away(x) + ratio * entropy(x)
  for at in [(0, 0, 0), (1, 2, 3)]:
    step = np.zeros(x.shape)
    step[at] = 1e-6
    want = (total(x + step) - total(x - step)) / 2e-6
    np.testing.assert_allclose(grad[at], want, rtol=1e-2, atol=1e-4)


def test_signs_have_the_gradient_of_the_inputs():
  x = normal(3, 4)
  layer, variables = build(
    quantizer.LookupFreeQuantizer.config(embedding_dim=4), x
  )
  mark = normal(3, 4, seed=2)
  grad = jit(jax.grad(lambda x: jnp.sum(layer.apply(variables, x)[0] * mark)))(
    x
  )
  np.testing.assert_allclose(grad, mark, atol=1e-6)


def test_eval_has_no_losses_and_keeps_the_dtype():
  x = normal(3, 4).astype(jnp.bfloat16)
  layer, variables = build(
    quantizer.LookupFreeQuantizer.config(embedding_dim=4), x
  )
  signs, out = run(layer, variables, x, do_eval=True)
  assert signs.dtype == jnp.bfloat16
  assert set(out) == {'encodings', 'encoding_indices', 'raw'}


@pytest.mark.parametrize('groups', [1, 2, 3])
def test_tokens_decode_to_the_signs(groups):
  x = normal(2, 3, 5)
  cfg = quantizer.LookupFreeQuantizer.config(
    embedding_dim=5, num_token_groups=groups
  )
  layer, variables = build(cfg, x)
  signs, out = run(layer, variables, x, do_eval=True)
  tokens = out.encoding_indices
  assert tokens.shape == ((2, 3) if groups == 1 else (2, 3, groups))
  got = run(layer, variables, tokens.astype(jnp.int32), method=layer.decode_ids)
  np.testing.assert_array_equal(got, signs)


@pytest.mark.parametrize(
  'cfg, message',
  [
    (quantizer.ScalarQuantizer.config(bound_method='cube'), "'sine' or 'tanh'"),
    (quantizer.ScalarQuantizer.config(dim_widths=()), 'must be positive'),
    (quantizer.ScalarQuantizer.config(dim_widths=(2,)), 'must have 1 channels'),
    (
      quantizer.LookupFreeQuantizer.config(entropy_loss_type='max'),
      "'softmax' or 'argmax'",
    ),
    (
      quantizer.LookupFreeQuantizer.config(entropy_loss_groups=3),
      'must divide embedding_dim 8',
    ),
    (
      quantizer.LookupFreeQuantizer.config(
        entropy_loss_groups=2, entropy_loss_type='argmax'
      ),
      "needs entropy_loss_type='softmax'",
    ),
    (
      quantizer.LookupFreeQuantizer.config(num_token_groups=9),
      'must be in 1 to 8',
    ),
    (quantizer.LookupFreeQuantizer.config(), 'must have 8 channels'),
    (
      quantizer.LookupFreeQuantizer.config(
        embedding_dim=66, num_token_groups=2, entropy_loss_groups=11
      ),
      'num_token_groups must be at least 3 with embedding_dim 66',
    ),
    (
      quantizer.ScalarQuantizer.config(dim_widths=(2,) * 32),
      'a product of at most 2.31',
    ),
  ],
)
def test_bad_settings(cfg, message):
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(2, 4))
