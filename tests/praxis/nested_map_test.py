# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""NestedMap: attribute access, paths, tree structure."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from praxis.nested_map import NestedMap


def sample() -> NestedMap:
  return NestedMap(b=[NestedMap(x=1), 2], a=NestedMap(y=3, z=None))


def test_attributes_are_keys():
  m = NestedMap(a=1)
  m.b = 2
  m['c'] = 3
  assert (m.a, m.b, m.c) == (1, 2, 3)
  del m.a
  assert sorted(m) == ['b', 'c']
  with pytest.raises(AttributeError, match="no key 'a'; it has"):
    _ = m.a


@pytest.mark.parametrize('key', ['1a', 'a.b', '', 'items', 3])
def test_bad_keys_are_refused(key):
  with pytest.raises(ValueError, match='NestedMap key'):
    NestedMap()[key] = 1


def test_flatten_items_are_sorted_paths():
  want = [('a.y', 3), ('a.z', None), ('b[0].x', 1), ('b[1]', 2)]
  assert sample().FlattenItems() == want
  assert sample().Flatten() == [3, None, 1, 2]


def test_pack_undoes_flatten_and_counts():
  m = sample()
  assert m.Pack(m.Flatten()) == m
  with pytest.raises(ValueError, match='Pack expects 4 leaves, got 1'):
    m.Pack([1])


def test_get_and_set_by_path():
  m = sample()
  assert m.GetItem('b[0].x') == 1
  assert m.Get('b[7].x', default='none') == 'none'
  m.Set('c.d[0].e', 5)
  assert m.c.d[0].e == 5
  assert isinstance(m.c, NestedMap)
  m.Set('f', 6)
  assert m.f == 6
  assert m.Get('', default='none') == 'none'
  with pytest.raises(KeyError):
    m.GetItem('a.nothing')


def test_filter_drops_emptied_parts():
  kept = sample().Filter(lambda leaf: leaf == 1)
  assert kept == NestedMap(b=[NestedMap(x=1)])
  by_path = sample().FilterKeyVal(lambda path, _: path.startswith('a.'))
  assert sorted(by_path) == ['a']


def test_deep_copy_shares_leaves_only():
  array = np.zeros(2)
  m = NestedMap(a=NestedMap(x=array))
  copied = m.DeepCopy()
  copied.a.y = 1
  assert 'y' not in m.a
  assert copied.a.x is array


def test_nested_dict_round_trip():
  plain = {'a': {'b': [{'c': 1}]}}
  m = NestedMap.FromNestedDict(plain)
  assert m.a.b[0].c == 1
  assert m.ToNestedDict() == plain
  assert type(m.ToNestedDict()['a']) is dict


def test_jax_sees_sorted_keys_whatever_the_insertion():
  first, second = NestedMap(b=1, a=2), NestedMap(a=2, b=1)
  assert jax.tree.structure(first) == jax.tree.structure(second)
  assert jax.tree.leaves(first) == [2, 1]
  doubled = jax.tree.map(lambda x: 2 * x, first)
  assert isinstance(doubled, NestedMap) and doubled.b == 2
  paths = [
    jax.tree_util.keystr(p, simple=True, separator='/')
    for p, _ in jax.tree_util.tree_flatten_with_path(first)[0]
  ]
  assert paths == ['a', 'b']


def test_is_compatible_compares_paths():
  assert NestedMap(a=1).IsCompatible(NestedMap(a=2))
  assert not NestedMap(a=1).IsCompatible(NestedMap(b=1))


def test_transformations_and_text_know_paths():
  x = NestedMap(a=[1, NestedMap(b=2)], c=np.zeros((2, 3), np.float32))
  paths = x.TransformWithKey(lambda path, leaf: path)
  assert paths == NestedMap(a=['a[0]', NestedMap(b='a[1].b')], c='c')
  assert x.Transform(type).a == [int, NestedMap(b=int)]
  assert x.DebugString() == 'a[0]  1\na[1].b  2\nc  (2, 3) float32'
