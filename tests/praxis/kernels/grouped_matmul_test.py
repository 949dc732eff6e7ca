# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Products of groups of rows against one product for each group."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.tools import flops
from praxis.kernels import grouped_matmul, grouped_matmul_triton, nvidia
from praxis.py_utils import platforms

# The last rows have no group.
_SIZES = (100, 0, 37, 150, 3)
_NUM_ROWS, _K, _N = 384, 64, 192
_TRITON = functools.partial(
  grouped_matmul_triton.grouped_matmul, interpret=True
)


def _arrays(sizes=_SIZES, num_rows=_NUM_ROWS):
  """Returns rows, weights and cotangents that bfloat16 has."""
  rng = np.random.default_rng(0)
  shapes = ((num_rows, _K), (len(sizes), _K, _N), (num_rows, _N))
  for shape in shapes:
    x = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    yield np.asarray(x, np.float32)


def _run(product):
  """Returns a compiled function to the products and their gradients."""

  @jax.jit
  def run(rows, weights, cotangents, sizes):
    outputs, pull = jax.vjp(lambda *x: product(*x, sizes), rows, weights)
    return outputs, *pull(cotangents)

  return run


def _check(run, arrays, sizes, dtype, tolerance):
  """Compares the products and gradients of each group with those of numpy."""
  rows, weights, cotangents = arrays
  # No product reads the rows without a group.
  is_grouped = np.arange(len(rows))[:, np.newaxis] < sum(sizes)
  outputs, of_rows, of_weights = run(
    jnp.asarray(np.where(is_grouped, rows, np.nan), dtype),
    jnp.asarray(weights, dtype),
    jnp.asarray(np.where(is_grouped, cotangents, np.nan), dtype),
    jnp.asarray(sizes, jnp.int32),
  )
  start = 0
  for i, size in enumerate(sizes):
    group = slice(start, start := start + size)
    for got, want in (
      (outputs[group], rows[group] @ weights[i]),
      (of_rows[group], cotangents[group] @ weights[i].T),
      (of_weights[i], rows[group].T @ cotangents[group]),
    ):
      assert got.dtype == dtype
      bound = tolerance * np.max(np.abs(want), initial=1.0)
      np.testing.assert_allclose(np.float32(got), want, rtol=0, atol=bound)


@pytest.mark.parametrize(
  ('product', 'dtype', 'tolerance'),
  [
    (grouped_matmul.grouped_matmul, jnp.float32, 1e-5),
    (
      functools.partial(grouped_matmul.by_megablox, interpret=True),
      *(jnp.float32, 1e-5),
    ),
    (_TRITON, jnp.bfloat16, 8e-3),
  ],
)
def test_products_and_gradients(product, dtype, tolerance):
  _check(_run(product), _arrays(), _SIZES, dtype, tolerance)


def test_triton_with_sizes():
  # Rows that fill no tile, of one group over several tiles, of none, of many.
  num_rows, num_groups = 150, 16
  run = _run(_TRITON)
  for sizes in (
    (0, num_rows, *(0,) * (num_groups - 2)),
    (0,) * num_groups,
    (1,) * num_groups,
  ):
    _check(run, _arrays(sizes, num_rows), sizes, jnp.bfloat16, 8e-3)


def test_triton_within_stages_of_a_pipeline():
  rows, weights, cotangents = (jnp.asarray(x, jnp.bfloat16) for x in _arrays())
  sizes = jnp.asarray([_SIZES, _SIZES[::-1]], jnp.int32)

  def gradients(rows, weights, sizes):
    outputs, pull = jax.vjp(lambda *x: _TRITON(*x, sizes), rows, weights)
    is_grouped = jnp.arange(_NUM_ROWS)[:, jnp.newaxis] < sum(_SIZES)
    of_rows, of_weights = pull(cotangents)
    return *(
      jnp.where(is_grouped, x, 0) for x in (outputs, of_rows)
    ), of_weights

  stages = jax.tree.map(lambda x: jnp.stack([x, -x]), (rows, weights))
  got = jax.jit(jax.vmap(gradients))(*stages, sizes)
  of_stage = jax.jit(gradients)
  for i in range(2):
    want = of_stage(*jax.tree.map(lambda x: x[i], (*stages, sizes)))  # noqa: B023
    for a, b in zip(got, want, strict=True):
      np.testing.assert_array_equal(a[i], b)


@pytest.mark.parametrize(
  ('sizes', 'rows_of_tile', 'tiles'),
  [
    ((5, 0, 4), 4, [(0, 0, 5), (0, 4, 5), (2, 5, 9)]),
    ((0, 0, 0), 4, []),
  ],
)
def test_visits_have_the_rows_of_one_group(sizes, rows_of_tile, tiles):
  visits = grouped_matmul_triton._visits(jnp.asarray(sizes), 9, rows_of_tile)
  got = [tuple(map(int, visit)) for visit in zip(*visits, strict=True)]
  assert got[: len(tiles)] == tiles
  assert all(start == end for _, start, end in got[len(tiles) :])


def test_flops_are_those_of_the_rows():
  rows, weights, cotangents = _arrays()
  counts = flops.count(
    lambda *args: jax.vjp(lambda x, w: _TRITON(x, w, args[3]), *args[:2])[1](
      args[2]
    ),
    *(jnp.asarray(x, jnp.bfloat16) for x in (rows, weights, cotangents)),
    jnp.asarray(_SIZES, jnp.int32),
  )
  # Two gradients; the products themselves are not needed.
  assert counts['dot_general'] == 2 * 2 * _NUM_ROWS * _K * _N


def test_programs_of_a_band_share_columns():
  tiles = [
    tuple(map(int, grouped_matmul_triton._visit_and_column(i, 11, 3)))
    for i in jnp.arange(33)
  ]
  assert tiles[:9] == [*((v, 0) for v in range(8)), (0, 1)]
  assert tiles[24:28] == [(8, 0), (9, 0), (10, 0), (8, 1)]
  assert sorted(tiles) == sorted(np.ndindex(11, 3))


def _is_kernel(num_rows=_NUM_ROWS, dtype=jnp.bfloat16, outputs=_N):
  # A new function, as JAX caches what it traced for CPUs.
  jaxpr = jax.make_jaxpr(lambda *args: grouped_matmul.grouped_matmul(*args))(
    jnp.ones((num_rows, _K), dtype),
    jnp.ones((len(_SIZES), _K, outputs), dtype),
    jnp.asarray(_SIZES, jnp.int32),
  )
  return 'pallas_call' in str(jaxpr)


def test_tpus_have_kernels_where_rows_fill_tiles():
  assert not _is_kernel()
  with platforms.tracing_for('tpu'):
    assert _is_kernel()
    assert not _is_kernel(_NUM_ROWS + 1)
    assert not _is_kernel(dtype=jnp.float16)


def test_gpus_have_kernels_for_half_precision(monkeypatch):
  with platforms.tracing_for('gpu'):
    assert not _is_kernel()
    monkeypatch.setattr(nvidia, 'reason_against_triton', lambda: None)
    assert _is_kernel()
    assert _is_kernel(_NUM_ROWS + 1, jnp.float16)
    assert not _is_kernel(dtype=jnp.float32)
    assert not _is_kernel(outputs=_N + 32)


def test_the_log_says_why_there_is_no_kernel(caplog):
  with platforms.tracing_for('gpu'), caplog.at_level('WARNING'):
    _is_kernel(outputs=_N + 8)
    _is_kernel(outputs=_N + 8)
  (line,) = caplog.messages
  assert line.endswith('this GPU: weights of (64, 200), not multiples of 64.')
