# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""NestedMap: attribute access, paths, tree structure."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import serialization

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
  with pytest.raises(AttributeError, match="no key 'a'; available attributes"):
    _ = m.a


def test_missing_keys_name_the_others():
  with pytest.raises(
    KeyError, match=r"'x'; available attributes: \['a', 'b'\]"
  ):
    _ = sample()['x']
  assert sample().get('x', 1) == 1
  assert {'a.y', 'b[0].x'} <= set(dir(sample()))


@pytest.mark.parametrize('key', ['1a', '', '/a', 'items', 3])
def test_bad_keys_are_refused(key):
  with pytest.raises(ValueError, match='NestedMap key'):
    NestedMap()[key] = 1


@pytest.mark.parametrize('key', ['a/b', 'a.b', 'a-b', 'a b', '_0'])
def test_only_the_first_character_of_a_key_is_checked(key):
  assert NestedMap({key: 1})[key] == 1


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
  m.Set('x/y.z', 7)
  assert m['x/y'].z == m.GetItem('x/y.z') == 7
  assert m.Get('', default='none') == 'none'
  assert m.Get('a.y.c', default='none') == 'none'
  with pytest.raises(KeyError):
    m.GetItem('a.nothing')


@pytest.mark.parametrize(
  'path, match', [('b[3]', 'greater than the length 2'), ('a.y.c', 'a dict')]
)
def test_set_names_what_stops_a_path(path, match):
  with pytest.raises(ValueError, match=match):
    sample().Set(path, 1)


def test_paths_select_and_merge_values():
  m = sample()
  assert m.Keys() == ['a.y', 'a.z', 'b[0].x', 'b[1]']
  paths = ['a', 'a.y', 'b[0].x', 'b[2]', 'a.y.q', 'c', '']
  assert [m.Has(path) for path in paths] == [True] * 3 + [False] * 4
  assert m.GetSlice(['a.y', 'b[0].x']) == NestedMap(
    a=NestedMap(y=3), b=[NestedMap(x=1)]
  )
  with pytest.raises(KeyError):
    m.GetSlice(['c'])
  update = NestedMap(a=NestedMap(y=4, w=5))
  union = m.Union(update)
  assert union.a == NestedMap(y=4, z=None, w=5) and m.a.y == 3
  assert m.Update(update) is m and m == union


def test_square_brackets_index_lists():
  keys = ['a', 'a[12]', 'a[0][1]', 'a[x]']
  assert [NestedMap.SquareBracketIndex(key) for key in keys] == [
    ('a', None),
    ('a', 12),
    ('a[0][1]', None),
    ('a[x]', None),
  ]


def test_a_tuple_is_a_leaf_of_its_methods_only():
  m = NestedMap(loss=(1.0, 2.0), e=NestedMap(), n=[])
  assert m.FlattenItems() == [('loss', (1.0, 2.0))]
  assert m.Pack(m.Flatten()) == m
  assert jax.tree.leaves(m) == [1.0, 2.0]


def test_dataclasses_become_maps():
  @dataclasses.dataclass
  class Point:
    x: int
    more: dict[str, Any]

  m = NestedMap.FromNestedDataclass(Point(1, {'y': [{'z': 2}]}))
  assert m.more.y[0].z == 2 and m.x == 1
  with pytest.raises(ValueError, match='must be a dataclass'):
    NestedMap.FromNestedDataclass(3)


def test_methods_keep_the_subclass():
  class Batch(NestedMap):
    pass

  m = Batch(a=1)
  copies = [m.copy(), m.DeepCopy(), copy.deepcopy(m), m.Pack([2])]
  copies += [m.Transform(str), m.Filter(lambda _: False)]
  assert {type(x) for x in copies} == {Batch}


def test_flax_state_has_lists_by_index():
  m = NestedMap(a=[1, NestedMap(b=2)])
  state = serialization.to_state_dict(m)
  assert state == {'a': {'0': 1, '1': {'b': 2}}}
  state['a']['1']['b'] = 3
  restored = serialization.from_state_dict(m, state)
  assert restored == NestedMap(a=[1, NestedMap(b=3)])
  assert isinstance(restored.a[1], NestedMap)


def test_vlog_logs_the_debug_string(caplog):
  caplog.set_level('DEBUG', logger='absl')
  sample().VLog(prefix='p:')
  sample().VLog(level=2)
  assert [r.getMessage() for r in caplog.records] == [
    f'p: {line}' for line in sample().DebugString().splitlines()
  ]


def test_filter_drops_emptied_parts():
  kept = sample().Filter(lambda leaf: leaf == 1)
  assert kept == NestedMap(b=[NestedMap(x=1)])
  by_path = sample().FilterKeyVal(lambda path, _: path.startswith('a.'))
  assert sorted(by_path) == ['a']
  empty = NestedMap(a=1, e=NestedMap())
  assert empty.Filter(lambda _: False) == NestedMap(e=NestedMap())


def test_deep_copy_shares_leaves_only():
  array = np.zeros(2)
  m = NestedMap(a=NestedMap(x=array))
  copied = m.DeepCopy()
  copied.a.y = 1
  assert 'y' not in m.a
  assert copied.a.x is array


def test_nested_dict_round_trip():
  plain = {'a': {'b': [{'c': 1}]}, 't': ({'u': 2},)}
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
  assert NestedMap(a=[1, NestedMap(b=2)], c='x').DebugString() == (
    'a[0]      1\na[1].b    2\nc         x'
  )
