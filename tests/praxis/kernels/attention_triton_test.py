# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of attention, interpreted, against the reference."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import py_utils
from praxis.kernels import attention
from praxis.kernels import attention_reference as reference
from praxis.kernels import attention_triton as triton
from praxis.kernels.attention_reference import Spec
from tests.testing import nightly

_SPECS = [
  Spec(),
  Spec(before=40, after=30, soft_cap=5.0),
  Spec(before=None, after=None),
]


def _operands(length, num_heads, num_kv_heads, dims, dtype=jnp.float32):
  rng = np.random.default_rng(0)
  query, key, value, dout = (
    jnp.asarray(rng.normal(size=(2, length, n, dims)), dtype)
    for n in (num_heads, num_kv_heads, num_kv_heads, num_heads)
  )
  ids = np.sort(rng.integers(0, 4, (2, length)), axis=1)
  scale = jnp.asarray(dims**-0.5, dtype)
  return query * scale, key, value, jnp.asarray(ids, jnp.int32), dout


def _assert_close(got, want, tolerance):
  for a, b in zip(got, want, strict=True):
    assert a.shape == b.shape and a.dtype == b.dtype
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b))


@pytest.mark.parametrize(
  ('spec', 'shape', 'dtype', 'tolerance'),
  [
    # Lengths and head dimensions are padded, heads of keys shared.
    (_SPECS[0], (200, 4, 2, 24), jnp.float32, 2e-6),
    *nightly.cases((_SPECS[1], (256, 2, 1, 16), jnp.float32, 2e-6)),
    (_SPECS[2], (128, 1, 1, 256), jnp.bfloat16, 1e-2),
  ],
  ids=str,
)
def test_values_and_gradients_equal_the_reference(
  spec, shape, dtype, tolerance
):
  @jax.jit
  def run(query, key, value, ids, dout):
    results = triton.forward(query, key, value, ids, spec, interpret=True)
    out, logsumexp = results
    delta = jnp.einsum(
      'BTNH,BTNH->BNT', dout, out, preferred_element_type=jnp.float32
    )
    operands = (query, key, value, ids, dout, logsumexp, delta)
    return *results, *triton.gradient(*operands, spec=spec, interpret=True)

  operands = _operands(*shape, dtype)
  *heads, ids, dout = operands
  (out, logsumexp), pull = jax.vjp(
    lambda *heads: reference.forward(*heads, ids, spec), *heads
  )
  want = out, logsumexp, *pull((dout, jnp.zeros_like(logsumexp)))
  _assert_close(run(*operands), want, tolerance)


@pytest.mark.parametrize('spec', _SPECS, ids=str)
def test_ranges_have_all_visible_blocks_and_skip_others(spec):
  blocks = triton._Blocks(rows=32, columns=16, num_warps=4, num_stages=2)
  ids = _operands(256, 1, 1, 4)[3]
  ranges = np.asarray(triton._visible_ranges(ids, spec, blocks))
  visible = np.asarray(reference.is_visible(ids, spec))
  # Whether a block of rows sees any position of a block of columns.
  visible = visible.reshape(2, 8, 32, 16, 16).any(axis=(2, 4))
  for b, row in np.ndindex(2, 8):
    (columns,) = np.nonzero(visible[b, row])
    first, end = ranges[b, row]
    assert first <= columns[0] and columns[-1] < end
    # Ids are sorted, so that only neighbours of a segment's blocks count more.
    assert end - first <= columns[-1] + 1 - columns[0] + 2
  assert (ranges[:, :, 1] - ranges[:, :, 0]).mean() < 16


@pytest.mark.parametrize('spec', _SPECS, ids=str)
def test_flops_are_those_of_the_visible_pairs(spec):
  one_segment = jnp.zeros((1, 96), jnp.int32)
  pairs = int(jnp.sum(reference.is_visible(one_segment, spec)))
  assert triton._product_flops((3, 96, 2, 8), spec) == 2 * 3 * 2 * 8 * pairs


def test_gpus_have_it_for_half_precision_only():
  ids = jnp.ones((1, 128), jnp.int32)

  def primitives(dtype, platform):
    x = jnp.ones((1, 128, 2, 16), dtype)
    with py_utils.tracing_for(platform):
      run = functools.partial(attention.attention, spec=Spec())
      return str(jax.make_jaxpr(run)(x, x, x, ids))

  assert 'pax_attention_forward' in primitives(jnp.bfloat16, 'gpu')
  assert 'pax_attention_forward' in primitives(jnp.float16, 'gpu')
  assert 'pax_attention_forward' not in primitives(jnp.float32, 'gpu')
  assert 'pax_attention_forward' not in primitives(jnp.bfloat16, 'cpu')
  with pytest.raises(ValueError, match='float32 or all bfloat16, got float16'):
    primitives(jnp.float16, 'cpu')
