# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Trees are equal after a file; no file runs code or gives wrong values."""

from __future__ import annotations

import dataclasses
import enum
import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pax.files import npz_trees
from praxis.pytypes import NestedMap


class Color(enum.IntEnum):
  RED = 3


@dataclasses.dataclass
class Point:
  x: int
  y: np.ndarray


def save(path, tree):
  with path.open('wb') as file:
    npz_trees.save(file, tree)
  return path


def assert_equal(got, want):
  assert type(got) is type(want)
  if isinstance(want, dict):
    assert list(got) == list(want)
    got, want = list(got.values()), list(want.values())
  if isinstance(want, list | tuple):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
      assert_equal(a, b)
  elif isinstance(want, np.ndarray | np.generic):
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)
  else:
    assert got == want or (got != got and want != want)


TREES = [
  None,
  [],
  (),
  {},
  NestedMap(a=NestedMap(b=[1, (2.5, 'x\u20ac\0', b'\xff\0')])),
  {1: 'an int', '1': 'a text', (2, None): True},
  [float('nan'), float('inf'), -0.0, 2**80],
  [np.float16(0.5), np.bool_(True), np.int64(-1), np.str_('text')],
  [np.zeros((0, 3), np.float32), np.array(7), np.arange(6).reshape(2, 3).T],
  [np.array(['a', 'bcd']), np.array([b'x']), np.array([True, False])],
  [np.array(['a', None, 2], object), np.array([1 + 2j]), np.zeros((2, 0))],
  [np.array([1.5, -2], ml_dtypes.bfloat16), ml_dtypes.float8_e4m3fn(0.25)],
  [np.array([1], '>i4'), np.array(['2026-11-22'], 'datetime64[D]')],
]


@pytest.mark.parametrize('tree', TREES, ids=range(len(TREES)))
def test_trees_are_equal_after_a_file(tmp_path, tree):
  assert_equal(npz_trees.load(save(tmp_path / 'a.npz', tree)), tree)


def test_what_becomes_a_base_class(tmp_path):
  tree = [jnp.bfloat16(2), jax.numpy.arange(2), Color.RED, Point(1, np.ones(2))]
  got = npz_trees.load(save(tmp_path / 'a.npz', tree))
  want = [
    np.array(2, ml_dtypes.bfloat16),
    np.arange(2, dtype=np.int32),
    3,
    {'x': 1, 'y': np.ones(2)},
  ]
  # Of a jax scalar comes what numpy makes of it.
  got[0] = np.asarray(got[0])
  assert_equal(got, want)


def test_arrays_of_other_packages(tmp_path):
  class Tensor:
    def __array__(self, dtype=None, copy=None):
      return np.arange(3, dtype=np.int16)

  got = npz_trees.load(save(tmp_path / 'a.npz', {'x': Tensor()}))
  assert_equal(got, {'x': np.arange(3, dtype=np.int16)})


def test_what_has_no_place_in_a_file(tmp_path):
  with pytest.raises(TypeError, match='got a function'):
    save(tmp_path / 'a.npz', [1, {'a': test_trees_are_equal_after_a_file}])


def test_many_small_arrays_are_few_members(tmp_path):
  tree = [(None, {'a': np.float32(i), 'b': np.arange(3)}) for i in range(500)]
  path = save(tmp_path / 'a.npz', tree)
  with np.load(path) as archive:
    assert len(archive.files) == 3
  assert path.stat().st_size < 100_000


class Attack:
  """Runs code when it is unpickled."""

  def __reduce__(self):
    return pytest.fail, ('code of the file ran',)


def test_nothing_is_unpickled(tmp_path):
  path = tmp_path / 'a.npz'
  path.write_bytes(pickle.dumps(Attack()))
  with pytest.raises(ValueError, match=r'a\.npz is damaged'):
    npz_trees.load(path)
  np.savez(path, **{'tree.json': np.array([Attack()], object)})
  with pytest.raises(ValueError, match=r'a\.npz is damaged'):
    npz_trees.load(path)


@pytest.mark.parametrize(
  'text',
  [
    '{"unknown": 1}', '{}', '{"a": 1, "b": 2}', '{"array": ["<f4", 0, [3]]}',
    '{"array": ["<f4", -1, [1]]}', '{"array": ["<f8", 0, [1]]}',
    '{"array": ["<f4", 0, [-1]]}', '{"array": ["bfloat16", 0, [1]]}',
    '{"array": 5}', '{"dict": [[{"list": []}, 1]]}', '{"bytes": "*"}', '[',
    '{"list":[' * 5000, '{"list":[' * 5000 + ']}' * 5000, '{"dict": 3}',
    '{"array": ["dtype", 0, [1]]}', '{"map": [["1", 1]]}',
  ],
)  # fmt: skip
def test_hostile_text(tmp_path, text):
  path = tmp_path / 'a.npz'
  encoded = np.frombuffer(text.encode(), np.uint8)
  np.savez(path, **{'tree.json': encoded, '<f4': np.zeros(2, np.float32)})
  with pytest.raises(ValueError, match=r'a\.npz is damaged'):
    npz_trees.load(path)


def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path):
  tree = [(None, {'a': np.arange(5), 'text': 'abc'})]
  path = save(tmp_path / 'a.npz', tree)
  content = path.read_bytes()
  for position in range(len(content)):
    flipped = bytearray(content)
    flipped[position] ^= 1 << position % 8
    path.write_bytes(flipped)
    try:
      got = npz_trees.load(path)
    except ValueError as e:
      assert str(path) in str(e)
    else:
      assert_equal(got, tree)
