# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Helpers on trees, arrays, sequences, and what they refuse."""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import flags
from absl.testing import flagsaver
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from praxis import asserts, lazy_loader, metric_utils, py_utils, pytypes, trees
from praxis.nested_map import NestedMap


class Point(NamedTuple):
  x: Any
  y: Any


TREE = {'a': [1, 2, Point(3, 4), (5,)], 'b': {'c': 6}}


def test_paths():
  want = {'a': ['a[0]', 'a[1]', Point('a[2]/x', 'a[2]/y'), ('a[3][0]',)]}
  want['b'] = {'c': 'b/c'}
  assert trees.to_path_tree(TREE) == want
  assert py_utils.extract_prefixed_keys_from_nested_map(TREE) == want
  assert trees.to_path_tree({'a': 1}, is_leaf=lambda x: x == 1) == {'a': None}
  assert py_utils.extract_prefixed_keys_from_nested_map(
    {'a': {'b': 1}, 'c': 2}, 'p', '.', is_leaf=lambda x: x == 2
  ) == {'a': {'b': 'p.a.b'}, 'c': None}
  assert py_utils.extract_prefixed_keys_from_nested_map(
    {'s': P('x'), 'z': 3}
  ) == {'s': 's', 'z': 'z'}


def test_patterns_choose_leaves():
  match = py_utils.match_variable_names(TREE, ['a.*x', re.compile('b/.')])
  assert match['b'] == {'c': True} and match['a'][2] == Point(True, False)
  new = jax.tree.map(lambda x: -x, TREE)
  updated = py_utils.update_matched_variables(TREE, new, 'b/c')
  assert updated['b']['c'] == -6 and updated['a'] == TREE['a']
  inverted = py_utils.update_matched_variables(TREE, new, 'b/c', invert=True)
  assert inverted['b']['c'] == 6 and inverted['a'][0] == -1


def test_subsets():
  part = {'a': [1, 2]}
  assert trees.is_subset(part, TREE) and not trees.is_subset(TREE, part)
  assert not trees.is_subset({'a': [2]}, TREE)
  extract = trees.extract_elements_matching_subset_structure
  assert extract({'a': [0, 0], 'b': 0}, TREE) == {'a': [1, 2], 'b': {'c': 6}}
  for bad in ({'z': 1}, {'a': [0] * 9}, {'b': {'c': [1]}}):
    with pytest.raises(ValueError, match='subset'):
      extract(bad, TREE)
  shapes = trees.get_shape_dtype({'a': jnp.ones([2])})
  assert shapes['a'] == jax.ShapeDtypeStruct((2,), jnp.float32)
  copied = trees.copy(TREE)
  assert copied == TREE and copied['a'] is not TREE['a']


def test_trees_as_wholes():
  tree = {'a': jnp.arange(6.0).reshape(2, 3), 'b': jnp.ones([2])}
  assert py_utils.total_num_vars(tree) == 8
  first, second = py_utils.tree_unstack(tree, 0)
  assert second['a'].tolist() == [3, 4, 5] and first['b'].tolist() == 1
  with pytest.raises(ValueError, match='one size along axis 1'):
    py_utils.tree_unstack(tree, 1)
  texts = py_utils.tree_unstack(np.array([b'a', 'b'], object), 0)
  assert [(type(x), x) for x in texts] == [(bytes, b'a'), (str, 'b')]
  assert py_utils.merge_dict({'a': 1}, {'b': 2, 'a': 1}) == {'a': 1, 'b': 2}
  with pytest.raises(ValueError, match="same key 'a'"):
    py_utils.merge_dict({'a': 1}, {'a': 2})
  m = NestedMap(x=jnp.ones([2, 1]), y=NestedMap(z=jnp.ones([1, 2])), n='n')
  joined = py_utils.concat_nested_maps([m, m], axis=1)
  assert joined.x.shape == (2, 2) and joined.y.z.shape == (1, 4)
  match, other = py_utils.filter_by_matching_keys({'ab': 1, 'b': 2}, ['a'])
  assert (match, other) == ({'ab': 1}, {'b': 2})
  assert py_utils.is_optax_masked_node(optax.MaskedNode())
  assert py_utils.is_bprop_masked_node(py_utils.BpropMaskedNode())
  assert not py_utils.is_optax_masked_node(py_utils.BpropMaskedNode())
  py_utils.assert_same_shape_and_dtype(tree, tree)
  with pytest.raises(ValueError, match='equal shapes and dtypes'):
    py_utils.assert_same_shape_and_dtype(tree['b'], tree['a'])


def test_arrays():
  x = jnp.asarray([[3.0, 4.0]])
  np.testing.assert_allclose(py_utils.l2_normalize(x), x / 5)
  hidden = py_utils.get_large_negative_number(jnp.float32)
  # Without 64 bits, the number of the 32 bit integers.
  wide = py_utils.get_large_negative_number(jnp.int64)
  assert wide == py_utils.get_large_negative_number(jnp.int32) < -(2**30)
  masked = py_utils.apply_mask_to_logits(x, jnp.asarray([[0.0, hidden]]))
  assert masked.tolist() == [[3.0, float(hidden)]]
  padded = py_utils.pad_or_trim_to(x, [2, 1], pad_val=7)
  assert padded.tolist() == [[3.0], [7.0]]
  assert py_utils.pad_or_trim_to(None, [2]) is None
  with pytest.raises(ValueError, match='2 dimensions'):
    py_utils.pad_or_trim_to(x, [2])
  outer = py_utils.reshape_with_outer_batch_size(jnp.arange(6), 2)
  assert outer.shape == (2, 3)
  back = py_utils.combine_inner_and_outer_batches(outer)
  assert back.tolist() == list(range(6))
  with pytest.raises(ValueError, match='outer_bs should be a factor'):
    py_utils.reshape_with_outer_batch_size(jnp.arange(6), 4)


def test_pad_to_multiple():
  x = jnp.arange(6).reshape(2, 3)
  padded = py_utils.pad_to_multiple(x, 1, 4, pad_val=-1)
  np.testing.assert_array_equal(padded, [[0, 1, 2, -1], [3, 4, 5, -1]])
  assert py_utils.pad_to_multiple(x, 0, 2) is x


def test_lengths_and_paddings():
  assert py_utils.sequence_mask([1, 3], 3, jnp.int32).tolist() == [
    [1, 0, 0],
    [1, 1, 1],
  ]
  paddings = py_utils.sequence_paddings(jnp.asarray([1, 3]), 3)
  assert paddings.tolist() == [[0, 1, 1], [0, 0, 0]]
  x = jnp.arange(12.0).reshape(2, 3, 2).at[0, 2, 0].set(jnp.nan)
  for kwargs in ({}, {'pad_value': 9.0}):
    out = py_utils.apply_padding(x, paddings, axis=0, **kwargs)
    assert out[0, 2].tolist() == [kwargs.get('pad_value', 0.0)] * 2
    assert out[1].tolist() == x[1].tolist()
  clean = py_utils.apply_padding(
    x[1:], paddings[:1, :, None], pad_value=9.0, use_select=False
  )
  assert clean.tolist() == [[[6, 7], [9, 9], [9, 9]]]
  flipped = py_utils.flip_sequence(
    jnp.asarray([[1, 2, 3], [4, 5, 6]]), jnp.asarray([2, 3])
  )
  assert flipped.tolist() == [[2, 1, 3], [6, 5, 4]]


def test_sequences_are_joined_where_they_end():
  a = jnp.asarray([[1, 2, 0], [3, 4, 5]])
  b = jnp.asarray([[6, 0], [7, 8]])
  joined, paddings = py_utils.concat_sequences_with_padding(
    a[..., None],
    jnp.asarray([[0.0, 0, 1], [0, 0, 0]]),
    b[..., None],
    jnp.asarray([[0.0, 1], [0, 0]]),
  )
  assert joined[..., 0].tolist() == [[1, 2, 6, 0, 0], [3, 4, 5, 7, 8]]
  assert paddings.tolist() == [[0, 0, 0, 1, 1], [0] * 5]
  with pytest.raises(ValueError, match='one shape after batch and time'):
    py_utils.concat_sequences_with_padding(
      a[..., None], a, jnp.ones([2, 2, 3]), b
    )


def test_every_sequence_ends():
  x = jnp.asarray([[5, 6, 9], [5, 1, 9], [4, 4, 4], [9, 9, 9]])
  paddings = jnp.asarray([[0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]]) * 1.0
  out, pads = py_utils.append_eos(x, paddings, eos_id=1)
  assert out.tolist() == [
    [5, 6, 1, 1],
    [5, 1, 1, 1],
    [4, 4, 4, 1],
    [1, 1, 1, 1],
  ]
  assert pads.sum(1).tolist() == [1, 2, 0, 3]
  out, pads = jax.jit(
    lambda x, p: py_utils.append_eos(x, p, 1, extend_if_overflow=False)
  )(x, paddings)
  assert out.shape == (4, 3) and pads.sum(1).tolist() == [0, 1, 0, 2]


def test_lengths_above_256_are_exact_in_bfloat16():
  tokens = jnp.full([1, 600], 5)
  paddings = py_utils.sequence_paddings([301], 600, jnp.bfloat16)
  ended, _ = py_utils.append_eos(tokens, paddings, 1, False)
  assert ended[0].tolist() == [5] * 301 + [1] * 299
  joined, joined_paddings = py_utils.concat_sequences_with_padding(
    tokens, paddings, tokens + 1, paddings
  )
  assert joined[0, :602].tolist() == [5] * 301 + [6] * 301
  assert joined_paddings[0].tolist() == [0] * 602 + [1] * 598


def test_uneven_shardings_are_filled_up_and_cut():
  spec, shape = P('x', ('x', 'y')), (3, 8)
  arguments = (spec, shape, (2, 3), ('x', 'y'))
  assert py_utils.get_uneven_sharding_paddings(*arguments) == [1, 4]
  x = jnp.ones(shape)
  (padded,) = py_utils.maybe_pad_uneven_sharding(
    [x], [spec], [shape], (2, 3), ('x', 'y')
  )
  assert padded.shape == (4, 12) and float(padded.sum()) == 24
  (cut,) = py_utils.maybe_slice_uneven_sharding([padded], [spec], [shape])
  np.testing.assert_array_equal(cut, x)


def test_arrays_over_devices():
  devices = np.asarray(jax.devices()[:2])
  mesh = jax.sharding.Mesh(devices, ('data',))
  rows = np.arange(8.0).reshape(4, 2)
  shape = jax.ShapeDtypeStruct((4, 2), np.float32)
  made = py_utils.make_array(rows, shape, mesh, P('data'))
  np.testing.assert_array_equal(made, rows)
  first = py_utils.maybe_unreplicate_for_first_shard(made)
  np.testing.assert_array_equal(first, rows[:2])
  with pytest.raises(ValueError, match='either pspecs or sharding'):
    py_utils.make_array(rows, shape, mesh)
  with pytest.raises(ValueError, match='multiple of 2 devices'):
    py_utils.put_to_devices(rows[:3], devices)
  assert not py_utils.global_mesh_defined()
  assert py_utils.with_sharding_constraint(made, P('data')) is made
  grid = py_utils.create_device_mesh([1, 2], [len(jax.devices()) // 2, 1])
  assert grid.shape == (len(jax.devices()) // 2, 2)
  assert py_utils.get_global_input_shape_dtype(made) == shape
  empty = py_utils.reshard(np.zeros((0, 3)))
  assert empty.shape == (jax.local_device_count(), 0, 3)
  split = py_utils.reshard(np.arange(jax.local_device_count() * 2))
  assert split.shape == (jax.local_device_count(), 2)
  assert py_utils.unshard(split).tolist() == list(range(split.size))


def test_time_logs_and_names(caplog):
  with py_utils.timeit(min_elapsed=5.0) as period:
    pass
  assert period.end is not None and period.elapsed == 5.0
  with caplog.at_level(logging.INFO):
    timed = py_utils.benchmark('run: ', first_n=1)(lambda: 3)
    assert timed() + timed() == 6
  assert len(caplog.records) == 1
  with py_utils.logging_verbosity_level('FATAL'):
    assert logging.getLogger().level == logging.FATAL
  glob = py_utils.sharded_file_pattern_to_glob
  assert glob('/a/b@8') == '/a/b-?????-of-00008'
  assert (glob('a@*'), glob('a')) == ('a-?????-of-*', 'a')
  with pytest.raises(ValueError, match='takes one pattern'):
    glob('a,b')
  example = {key: [i] for i, key in enumerate(py_utils.ENUM_PROVENANCE_KEYS)}
  assert py_utils.get_enumeration_id(example, pop=True).endswith('num_shards=2')
  assert example == {} and py_utils.get_enumeration_id(example) is None


def test_asserts_name_what_they_checked():
  dims, want = 4, [3]
  asserts.eq(dims, 4)
  with pytest.raises(
    ValueError, match=r'`dims=4` must be equal to `want\[0\]=3`'
  ):
    asserts.eq(
      dims,
      want[0],
    )
  with pytest.raises(TypeError, match='^own$'):
    asserts.none(dims, msg='own', exception_type=TypeError)
  with pytest.raises(ValueError, match='`d` must be of type'):
    asserts.instance(dims, str, value_str='d')
  for check, values in (
    (asserts.ne, (3, 3)),
    (asserts.le, (3, 2)),
    (asserts.lt, (3, 3)),
    (asserts.ge, (2, 3)),
    (asserts.gt, (3, 3)),
    (asserts.not_none, (None,)),
    (asserts.subclass, (int, str)),
    (asserts.in_set, (3, {4})),
    (asserts.between, (3, 4, 5)),
    (asserts.assert_same_structure, ({'a': 1}, [1])),
  ):
    with pytest.raises(ValueError):
      check(*values)
    with asserts.AssertsContext(enabled=False):
      check(*values)
  asserts.between(1, 1, 2, right_strict=True)
  with pytest.raises(ValueError, match=r'must be in the range `\(1, 2\]`\.$'):
    asserts.between(1, 1, 2, left_strict=True)
  asserts.assert_same_structure(NestedMap(a=1), {'a': 2})


def test_top_k_accuracy():
  logits = jnp.asarray([[0.1, 0.2, 0.3], [0.9, 0.0, 0.1], [0.0, 1.0, 2.0]])
  ids = jnp.asarray([1, 0, 0])
  accuracy = metric_utils.top_k_accuracy
  np.testing.assert_allclose(accuracy(1, logits, ids), 1 / 3)
  np.testing.assert_allclose(accuracy(2, logits, ids), 2 / 3)
  weights = jnp.asarray([1.0, 1.0, 0.0])
  np.testing.assert_allclose(accuracy(2, logits, ids, weights=weights), 1.0)
  probs = jax.nn.one_hot(ids, 3)
  np.testing.assert_allclose(accuracy(1, logits, label_probs=probs), 1 / 3)
  with pytest.raises(ValueError, match='label_ids or label_probs must be'):
    accuracy(1, logits)


def test_a_lazy_module_takes_its_place():
  names: dict[str, Any] = {}
  lazy = lazy_loader.LazyLoader('j', names, 'json', warning='late')
  assert repr(lazy) == '<LazyLoader json as j>' and names == {}
  assert lazy.loads('3') == 3 and names['j'].__name__ == 'json'
  assert 'dumps' in dir(lazy)


def test_types_of_arrays():
  shape = jax.ShapeDtypeStruct((2,), jnp.float32)
  assert isinstance(shape, pytypes.JaxArrayT)
  assert isinstance(np.ones(2), pytypes.ArrayT)
  assert not isinstance(np.ones(2), pytypes.JaxArrayT)


def test_a_step_may_be_traced_for_devices_that_are_elsewhere():
  assert py_utils.target_platform() == jax.default_backend()
  with py_utils.tracing_for('tpu'):
    assert py_utils.target_platform() == 'tpu'
    with py_utils.tracing_for('gpu'):
      assert py_utils.target_platform() == 'gpu'
    assert py_utils.target_platform() == 'tpu'
  assert py_utils.target_platform() == jax.default_backend()


def test_arrays_move_between_pmap_and_meshes():
  devices = np.array(jax.devices())
  replicated = jax.device_put(
    jnp.arange(3.0), NamedSharding(Mesh(devices, ('x',)), P())
  )
  rows = py_utils.convert_fully_replicated_array_to_pmap_array(replicated)
  assert rows.shape == (len(devices), 3)
  assert {s.data.shape for s in rows.addressable_shards} == {(1, 3)}
  doubled = jax.pmap(lambda x: 2 * x)(rows)
  whole = py_utils.convert_host_local_array_to_global_array(doubled)
  assert whole.tolist() == [0.0, 2.0, 4.0]
  assert whole.sharding.is_fully_replicated


def test_extract_keys_takes_the_separators_by_position():
  tree = {'a': [1, {'b': 2}]}
  keys = py_utils.extract_keys(tree, 'p', '.', '(', ')', None)
  assert keys == {'a': ['p.a(0)', {'b': 'p.a(1).b'}]}


def test_pmap_use_tensorstore_is_the_flag():
  assert not py_utils.pmap_use_tensorstore()
  with flagsaver.flagsaver():
    # Programs set it without parsing a command line, as notebooks do.
    flags.FLAGS.pmap_use_tensorstore = True
    assert py_utils.pmap_use_tensorstore()
  defined = flags.FlagValues()
  flags.DEFINE_bool('pmap_use_tensorstore', False, '', flag_values=defined)
  defined(['program', '--pmap_use_tensorstore'])
  with mock.patch.object(flags, 'FLAGS', defined):
    assert py_utils.pmap_use_tensorstore()
