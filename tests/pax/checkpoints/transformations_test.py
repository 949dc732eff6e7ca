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
from pax.checkpoints import transformations


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


def test_mistakes(job):
  with pytest.raises(ValueError, match='lm.gone is not in it'):
    _restore(job, {'x': 'lm/gone'}, x=2)
  with pytest.raises(ValueError, match=r'must have shape \[2\]'):
    _restore(job, {'x': _transform('lm/wide', lambda x: x)}, x=2)
  with pytest.raises(ValueError, match='sets use_fallback'):
    transformations.Transformations({'x': _transform('y', use_fallback=True)})
