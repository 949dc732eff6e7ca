# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Vector quantizers and how they report their use, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import quantizer, quantizer_objectives
from tests.praxis.layers.running import build, jit, normal, run

_PADDINGS = jnp.asarray([[0.0, 0, 0, 0], [0, 0, 1, 1]])


def _unit(x):
  return x / np.sqrt(np.sum(x**2, -1, keepdims=True) + 1e-12)


def _nearest(parts, book):
  """Codes [B, T, G] of [B, T, G, H] in [V, G, H]."""
  distances = np.sum((parts[:, :, None] - book) ** 2, -1)
  return np.argmin(distances, axis=2)


def _usage(codes, classes):
  """Perplexity and coverage of codes [N, G], means over the groups."""
  pplx, covered = [], []
  for group in codes.T:
    share = np.bincount(group, minlength=classes) / len(group)
    pplx.append(np.exp(-sum(p * np.log(p) for p in share if p > 0)))
    covered.append(np.mean(share > 0))
  return np.mean(pplx), np.mean(covered)


def test_quantize_vector():
  latent, book = normal(2, 3, 2, 4), normal(5, 2, 4, seed=2)
  vectors, codes, one_hot = quantizer.quantize_vector(latent, book)
  want = _nearest(np.asarray(latent), np.asarray(book))
  np.testing.assert_array_equal(codes, want)
  np.testing.assert_array_equal(one_hot, np.eye(5)[want])
  for group in range(2):
    np.testing.assert_allclose(
      vectors[:, :, group], np.asarray(book)[want[..., group], group]
    )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'num_groups': 2},
    {'num_groups': 2, 'normalize_latent_per_group': False},
    {'normalize_latent_vector': False, 'normalize_codebook': False},
  ],
)
def test_vector_quantizer(fields):
  z, mark = normal(2, 4, 6), normal(2, 4, 6, seed=5)
  cfg = quantizer.VectorQuantizer.config(
    latent_dim=6, num_latent_classes=5, beta=0.3, **fields
  )
  layer, variables = build(cfg, z, _PADDINGS)

  @jit
  def train(variables, z):
    def total(variables, z):
      out = layer.apply(variables, z, _PADDINGS)
      return out.loss + jnp.sum(out.z_q * mark), out

    return jax.grad(total, (0, 1), has_aux=True)(variables, z)

  (by_variable, by_input), out = train(variables, z)
  valid = 1 - np.asarray(_PADDINGS)[..., None]
  w, x = np.asarray(variables['params']['w']), np.asarray(z) * valid
  groups = fields.get('num_groups', 1)
  book, latent = w, x
  if fields.get('normalize_codebook', True):
    book = _unit(w)
  whole = not fields.get('normalize_latent_per_group', True)
  if whole:
    latent = _unit(x)
  parts = latent.reshape(2, 4, groups, -1)
  if fields.get('normalize_latent_vector', True) and not whole:
    parts = _unit(parts)
  codes = _nearest(parts, book)
  picked = np.stack([book[codes[..., g], g] for g in range(groups)], axis=2)
  vectors = picked.reshape(x.shape) * valid
  np.testing.assert_array_equal(out.z_codes, codes * valid.astype(int))
  np.testing.assert_allclose(out.z_q, vectors, atol=1e-5)
  distance = np.sum(np.mean((latent - vectors) ** 2, -1)) / 6
  np.testing.assert_allclose(out.loss, 1.3 * distance, rtol=1e-4)
  kept = codes[np.asarray(_PADDINGS) == 0]
  pplx, covered = _usage(kept, 5)
  np.testing.assert_allclose(out.pplx, pplx, rtol=1e-5)
  np.testing.assert_allclose(out.entropy, np.log(pplx), rtol=1e-5)
  np.testing.assert_allclose(out.codebook_coverage, covered, rtol=1e-5)
  np.testing.assert_allclose(
    out.codebook_num_covered_words, covered * 5**groups, rtol=1e-5
  )
  if not whole:
    # Straight through, and the pull towards the codebook.
    pull = 0.3 * 2 * (x - vectors) / 6 / 6
    want = (np.asarray(mark) + pull) * valid
    np.testing.assert_allclose(by_input, want, atol=1e-4)
  if not fields.get('normalize_codebook', True):
    want = np.zeros(w.shape)
    for at in np.argwhere(np.asarray(_PADDINGS) == 0):
      pull = 2 * (vectors - latent)[tuple(at)] / 6 / 6
      want[codes[tuple(at)][0], 0] += pull
    np.testing.assert_allclose(by_variable['params']['w'], want, atol=1e-5)


def test_vectors_are_looked_up():
  z = normal(2, 4, 6)
  cfg = quantizer.VectorQuantizer.config(
    latent_dim=6, num_latent_classes=5, beta=0.3, num_groups=2
  )
  layer, variables = build(cfg, z, _PADDINGS)
  out = run(layer, variables, z, _PADDINGS)
  got = run(layer, variables, out.z_codes, method=layer.look_up)
  valid = 1 - np.asarray(_PADDINGS)[..., None]
  np.testing.assert_allclose(got * valid, out.z_q, atol=1e-5)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {
      'stack_ratio': 2,
      'num_groups': 2,
      'normalize_latent_vector': True,
      'normalize_codebook': True,
    },
    {
      'low_rank_codebook': True,
      'normalize_latent_vector': True,
      'normalize_latent_per_group': False,
    },
  ],
)
def test_random_quantizer(fields):
  z = normal(2, 4, 3)
  cfg = quantizer.RandomVectorQuantizer.config(
    latent_dim=3, projection_dim=4, num_latent_classes=5, **fields
  )
  layer, variables = build(cfg, z, _PADDINGS)
  p = jax.tree.map(np.asarray, variables['params'])
  assert p['random_codebook'].ndim == (
    2 if 'low_rank_codebook' in fields else 3
  )
  ratio, groups = fields.get('stack_ratio', 1), fields.get('num_groups', 1)
  book = p['random_codebook'].reshape(5, groups, -1)
  frames = np.asarray(z).reshape(2, 4 // ratio, -1)
  paddings = np.asarray(_PADDINGS).reshape(2, 4 // ratio, ratio).max(-1)
  projected = frames @ p['random_proj'] + p['random_bias']
  if fields.get('normalize_codebook'):
    book = _unit(book)
  if 'low_rank_codebook' in fields:
    projected = _unit(projected)
  parts = projected.reshape(*projected.shape[:2], groups, -1)
  if groups == 2:
    parts = _unit(parts)
  codes = _nearest(parts, book)
  out = run(layer, variables, z, _PADDINGS)
  np.testing.assert_array_equal(out.z_codes, codes)
  np.testing.assert_array_equal(out.paddings, paddings)
  pplx, covered = _usage(codes[paddings == 0], 5)
  np.testing.assert_allclose(out.pplx, pplx, rtol=1e-5)
  np.testing.assert_allclose(out.codebook_num_covered_codes, covered * 5)
  got = run(layer, variables, out.z_codes, method=layer.look_up)
  np.testing.assert_allclose(got, out.z_q, atol=1e-6)


def test_random_quantizer_has_no_gradient():
  z = normal(2, 4, 3)
  cfg = quantizer.RandomVectorQuantizer.config(
    latent_dim=3, num_latent_classes=5, fprop_dtype=jnp.bfloat16
  )
  layer, variables = build(cfg, z, _PADDINGS)

  def total(variables, z):
    out = layer.apply(variables, z, _PADDINGS)
    return out.z_q.sum() + out.pplx + out.z_onehot.sum()

  grads = jit(jax.grad(total, (0, 1)))(variables, z.astype(jnp.bfloat16))
  assert all((g == 0).all() for g in jax.tree.leaves(grads))


def test_codebook_is_shown():
  z = normal(2, 4, 3)
  cfg = quantizer.RandomVectorQuantizer.config(
    latent_dim=3, num_latent_classes=5, plot_codebook=True
  )
  layer, variables = build(cfg, z, _PADDINGS)
  _, seen = run(layer, variables, z, _PADDINGS, mutable=[base_layer.SUMMARIES])
  assert seen[base_layer.SUMMARIES]['codebook_image'].shape == (1, 5, 16, 3)


def test_replicas_count_as_one_batch():
  codes = jnp.asarray(np.random.default_rng(0).integers(0, 6, (4, 3, 2)))
  paddings = jnp.zeros([4, 3]).at[1, 2].set(1.0)
  count = quantizer_objectives.batch_pplx_entropy_from_codes
  want = count(codes, 6, paddings=paddings)
  coverage = quantizer_objectives.batch_codebook_coverage
  by_replica = jax.vmap(
    lambda c, p: (
      count(c, 6, paddings=p, data_parallel_axis='batch'),
      coverage(c, 6, paddings=p, data_parallel_axis='batch'),
    ),
    axis_name='batch',
  )
  got, covered = jit(by_replica)(codes, paddings)
  for one, whole in zip(got, want, strict=True):
    np.testing.assert_allclose(one[0], whole, rtol=1e-6)
  np.testing.assert_allclose(covered[0], np.mean(np.asarray(want[2]) > 0))
  kept = np.asarray(codes)[np.asarray(paddings) == 0]
  np.testing.assert_allclose(want[0], _usage(kept, 6)[0], rtol=1e-5)


def test_scatter():
  got = quantizer_objectives.scatter_nd(
    jnp.asarray([[0, 1], [2, 0], [0, 1]]), jnp.asarray([1.0, 2, 3]), (3, 2)
  )
  np.testing.assert_array_equal(got, [[0, 4], [0, 0], [2, 0]])


@pytest.mark.parametrize(
  'cfg, message',
  [
    (
      quantizer.VectorQuantizer.config(latent_dim=4, beta=1.0),
      'num_latent_cla',
    ),
    (
      quantizer.VectorQuantizer.config(num_latent_classes=4, beta=1.0),
      'needs latent_dim > 0',
    ),
    (
      quantizer.VectorQuantizer.config(num_latent_classes=4, latent_dim=4),
      'beta must be set',
    ),
    (
      quantizer.VectorQuantizer.config(
        num_latent_classes=4, latent_dim=4, beta=1.0, num_groups=3
      ),
      'num_groups must divide latent_dim 4, got 3',
    ),
    (
      quantizer.RandomVectorQuantizer.config(
        num_latent_classes=4, latent_dim=4, num_groups=3
      ),
      'num_groups must divide projection_dim 16, got 3',
    ),
    (
      quantizer.RandomVectorQuantizer.config(
        num_latent_classes=4, latent_dim=4, stack_ratio=0
      ),
      'stack_ratio must be positive',
    ),
  ],
)
def test_bad_settings(cfg, message):
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(2, 4, 4), _PADDINGS)
