# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Packing, types, equations and low-rank shapes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.quantization import utils


@pytest.mark.parametrize('container', [jnp.int32, jnp.int8])
@pytest.mark.parametrize('dim', [0, 1])
def test_four_bits_are_packed_and_unpacked(container, dim):
  numbers = np.random.default_rng(0).integers(-8, 8, (8, 16)).astype(np.int8)
  packed = utils.pack_4bit(jnp.asarray(numbers), dim, container)
  factor = 8 if container == jnp.int32 else 2
  assert packed.dtype == container
  assert list(packed.shape) == utils.get_packed_shape((8, 16), dim, factor)
  first = np.moveaxis(numbers, dim, 0)[:factor, 0].astype(np.int64) & 0xF
  word = int((first << (4 * np.arange(factor))).sum())
  bits = 4 * factor
  got = int(np.moveaxis(np.asarray(packed), dim, 0)[0, 0])
  assert got % 2**bits == word
  back = utils.unpack_4bit(packed, dim, jnp.int8)
  np.testing.assert_array_equal(back, numbers)


def test_unsigned_numbers_are_packed_into_int32_only():
  numbers = jnp.arange(16, dtype=jnp.uint8)
  packed = utils.pack_4bit(numbers, 0)
  back = utils.unpack_4bit(packed, 0, jnp.uint8)
  np.testing.assert_array_equal(back, numbers)
  with pytest.raises(ValueError, match='into int32 only'):
    utils.pack_4bit(numbers, 0, jnp.int8)
  with pytest.raises(ValueError, match='multiple of 8'):
    utils.pack_4bit(numbers[:9], 0)
  with pytest.raises(ValueError, match='int32 or int8'):
    utils.pack_4bit(numbers, 0, jnp.int16)
  with pytest.raises(ValueError, match='must be a dimension'):
    utils.pack_4bit(numbers, 1)


def test_types_by_bits():
  assert utils.dtype_to_bits(jnp.int4) == 4
  assert utils.dtype_to_bits(jnp.bfloat16) == 16
  assert utils.bits_to_dtype(5) == jnp.int8
  assert utils.bits_to_dtype(3, signed=False) == jnp.uint4
  one = lambda dtype: jnp.ones(1, dtype)
  match = utils.get_smallest_matching_dtype
  assert match(one(jnp.int8), one(jnp.int4)) == jnp.int8
  assert match(one(jnp.int8), one(jnp.uint8)) == jnp.int16
  assert match(one(jnp.int8), one(jnp.uint4)) == jnp.int8
  assert match(one(jnp.uint32), one(jnp.int8)) == jnp.int32
  with pytest.raises(ValueError, match='rhs must have an integer type'):
    match(one(jnp.int8), one(jnp.float32))


def test_dimension_numbers_of_an_equation():
  numbers, order = utils.einsum_eqn_to_dimension_numbers('abD,KDN->KabN')
  assert numbers == (((2,), (1,)), ((), ()))
  assert order == (2, 0, 1, 3)
  numbers, order = utils.einsum_eqn_to_dimension_numbers('BTNH,BSNH->BNTS')
  assert numbers == (((3,), (3,)), ((0, 2), (0, 2))) and order is None
  with pytest.raises(NotImplementedError, match="must not have '...'"):
    utils.einsum_eqn_to_dimension_numbers('...a,ab->...b')
  for bad, keywords in (
    ('ab,b->', "Contraction .*'a'"),
    ('ab,b->c', 'must be in the output'),
    ('aa,ab->b', 'Repeated letter'),
    ('a,b,c->abc', 'two arguments'),
  ):
    with pytest.raises(ValueError, match=keywords):
      utils.einsum_eqn_to_dimension_numbers(bad)


@pytest.mark.parametrize(
  ('eqn', 'both', 'want'),
  [
    ('...D,DNH->...NH', False, ([8, 2], [2, 4, 6])),
    ('...NH,DNH->...D', False, ([6, 2], [8, 4, 2])),
    ('...NH,DNH->...D', True, ([4, 6, 2, 2], [8, 2, 2])),
  ],
)
def test_low_rank_products_have_the_shape_of_the_product(eqn, both, want):
  parts = utils.get_lora_shape_and_eqn((8, 4, 6), 2, eqn, not both)
  to_middle, to_output, left, right, left_dims, right_dims = parts
  assert (left, right) == want
  x = np.ones((3, 8) if eqn.startswith('...D') else (3, 4, 6))
  middle = np.einsum(to_middle, x, np.ones(left))
  got = np.einsum(to_output, middle, np.ones(right)).shape
  assert got == np.einsum(eqn, x, np.ones((8, 4, 6))).shape
  split = utils.get_right_weight_split_dims_mapping(
    ('data', 'mdl', None), right_dims
  )
  assert [split[i] for i in right_dims] == [None] * len(right_dims)
  split = utils.get_left_weight_split_dims_mapping(
    ('data', 'mdl', None), left_dims
  )
  assert len(split) == len(left)
