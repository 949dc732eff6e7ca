# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A state is read from a checkpoint of a model with other names and shapes."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints
from pax.checkpoints import (
  checkpoint_reader,
  reading,
  state_restore,
  transformations,
)


@pytest.fixture(scope='module')
def job(tmp_path_factory):
  """A job whose checkpoint has lm.old.w, lm.wide and kept."""
  directory = str(tmp_path_factory.mktemp('job'))
  writer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), directory
  )
  state = {
    'lm': {'old': {'w': jnp.arange(3.0)}, 'wide': jnp.arange(4.0)},
    'kept': jnp.ones(2),
  }
  writer.save(5, state, {'count': 9}, force=True)
  writer.close()
  return directory


def _restore(job, rules, **shapes):
  reader = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), job, restore_transformations=rules
  )
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {
    name: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=sharding)
    for name, size in shapes.items()
  }
  return reader.restore(abstract)


def _transform(key, value_fn=None, use_fallback=False):
  return types.SimpleNamespace(
    original_key=key, value_fn=value_fn, use_fallback=use_fallback
  )


def test_names_and_values(job):
  rules = {
    'new/(.*)': r'lm/old/\1',
    'narrow': _transform('lm/wide', lambda x: x[:2] * 2),
    'kept': 'not/asked',
  }
  found = _restore(job, rules, **{'new/w': 3, 'narrow': 2, 'kept': 2})
  assert found.step == 5 and found.input_state == {'count': 9}
  np.testing.assert_array_equal(found.state['new/w'], [0, 1, 2])
  np.testing.assert_array_equal(found.state['narrow'], [0, 2])
  np.testing.assert_array_equal(found.state['kept'], [1, 1])


def test_leaves_of_one_source_share_no_buffer(job):
  state = _restore(job, {'a|b': 'lm/wide'}, a=4, b=4).state
  # A train step donates them.
  added = jax.jit(lambda t: jax.tree.map(jnp.cos, t), donate_argnums=0)(state)
  np.testing.assert_array_equal(added['a'], jnp.cos(jnp.arange(4.0)))
  np.testing.assert_array_equal(added['b'], added['a'])
  rules = {'a|b': 'lm/wide', 'c': _transform('lm/wide', lambda x: x[:2])}
  for sizes in ({'a': 3, 'b': 4}, {'a': 4, 'b': 3}, {'a': 3, 'c': 2}):
    with pytest.raises(ValueError, match=r'lm.wide is float32\[4\]'):
      _restore(job, rules, **sizes)


def test_a_value_function_needs_no_other_name(job):
  rules = {'lm/wide': _transform(None, lambda x: jnp.append(x, 9.0))}
  state = _restore(job, rules, **{'lm/wide': 5}).state
  np.testing.assert_array_equal(state['lm/wide'], [0, 1, 2, 3, 9])


def test_a_job_does_not_transform_its_own_checkpoints(job):
  rules = {
    'kept': _transform(None, lambda x: x * 3),
    'lm/wide': 'not/there',
  }
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {
    'kept': jax.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding),
    'lm': {'wide': jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)},
  }
  own = _restore(job, rules, **{'kept': 2, 'lm/wide': 4}).state
  np.testing.assert_array_equal(own['kept'], [1, 1])
  # Those of another job are: `external_checkpoint_path`, `restore_checkpoint`.
  _, path = reading.find_checkpoint(job)
  names = reading.leaf_names(abstract)
  state = reading.read_tree(
    checkpoint_reader.CheckpointReader(path),
    abstract,
    names,
    rules,
    is_own=False,
  )
  np.testing.assert_array_equal(state['kept'], [3, 3])
  np.testing.assert_array_equal(state['lm']['wide'], jnp.arange(4))
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('x',))
  state = state_restore.restore_arrays(
    checkpoint_reader.CheckpointReader(path),
    abstract,
    jax.tree.map(lambda _: jax.sharding.PartitionSpec(), abstract),
    mesh,
    rules,
  )
  np.testing.assert_array_equal(state['kept'], [3, 3])


def test_mistakes(job):
  with pytest.raises(ValueError, match='lm.gone is not in it'):
    _restore(job, {'x': 'lm/gone'}, x=2)
  with pytest.raises(ValueError, match=r'must have shape \[2\]'):
    _restore(job, {'x': _transform('lm/wide', lambda x: x)}, x=2)


def test_fresh_values_stay_where_the_checkpoint_has_none(job):
  rules = {'lm/.*': _transform(None, use_fallback=True)}
  assert transformations.needs_fresh_state(rules)
  assert not transformations.needs_fresh_state({'x': 'y'})
  fresh = {
    'lm': {'new': jnp.full(2, 7.0), 'wide': jnp.full(2, 8.0)},
    'kept': jnp.full(2, 9.0),
  }
  reader = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), job, restore_transformations=rules
  )
  found = reader.restore(fresh).state
  # Missing, of another shape, and as it is on disk.
  np.testing.assert_array_equal(found['lm']['new'], [7, 7])
  np.testing.assert_array_equal(found['lm']['wide'], [8, 8])
  np.testing.assert_array_equal(found['kept'], [1, 1])
  # A shape alone is no value.
  with pytest.raises(ValueError, match='lm.new is not in it'):
    _restore(job, rules, **{'lm/new': 2})
