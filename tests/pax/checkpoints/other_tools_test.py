# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Checkpoints, opened by the calls with which MaxText and Levanter open theirs.

The calls are those of AI-Hypercomputer/maxtext e591f30c (2026-08-22) and
marin-levanter 0.2.20.dev202606180959, before it stanford-crfm/levanter 9263f81e
(2025-09-26), on trees of ours.
"""

from __future__ import annotations

import datetime
import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from etils import epath
from jax.experimental.array_serialization import (
  serialization as array_serialization,
)
from orbax.checkpoint import v1 as ocp_v1

from pax.checkpoints import paths
from tests.testing import saved_states, trees

_GB = 8
_SAVED = saved_states.state(4, 6.0)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  """A checkpoint of four devices by Orbax."""
  folder = tmp_path_factory.mktemp('orbax')
  return saved_states.save(folder) / 'checkpoint_00000005'


@pytest.fixture(scope='module')
def leaf_checkpoint(tmp_path_factory):
  """The same with a folder per array."""
  folder = tmp_path_factory.mktemp('leaves')
  return saved_states.save(folder, use_ocdbt=False) / 'checkpoint_00000005'


def _maxtext_checkpointer(use_zarr3: bool) -> ocp.Checkpointer:
  """Returns what MaxText loads by; `use_zarr3` is its default."""
  return ocp.Checkpointer(
    ocp.PyTreeCheckpointHandler(
      restore_concurrent_gb=_GB,
      save_concurrent_gb=_GB,
      use_ocdbt=True,
      use_zarr3=use_zarr3,
    )
  )


def _check(restored, saved, target):
  """Checks the values, and that they are on the devices of the target."""
  saved_states.check_equal(restored, saved)
  assert jax.tree.all(
    jax.tree.map(lambda a, b: a.sharding == b.sharding, restored, target)
  )


def test_maxtext_inspects_shapes_and_dtypes(checkpoint):
  """`inspect_checkpoint orbax --check_dtype=True`."""
  found = ocp.StandardCheckpointer().metadata(epath.Path(checkpoint / 'state'))
  arrays = ocp.tree.to_flat_dict(found.item_metadata)
  assert {k: (v.shape, v.dtype) for k, v in arrays.items()} == {
    tuple(map(_key, path)): (leaf.shape, leaf.dtype)
    for path, leaf in jax.tree.leaves_with_path(_SAVED)
  }


def _key(entry) -> str:
  return str(entry.key if hasattr(entry, 'key') else entry.idx)


@pytest.mark.parametrize('use_zarr3', [False, True])
def test_maxtext_loads_parameters(checkpoint, use_zarr3):
  """`load_parameters_path`: one branch of the tree, to other devices."""
  target = saved_states.state(2)['mdl_vars']['params']
  abstract = trees.abstract(target)
  restored = _maxtext_checkpointer(use_zarr3).restore(
    epath.Path(checkpoint / 'state'),
    item={'mdl_vars': {'params': abstract}},
    transforms={},
    restore_args={
      'mdl_vars': {
        'params': ocp.checkpoint_utils.construct_restore_args(abstract)
      }
    },
  )
  _check(restored['mdl_vars']['params'], _SAVED['mdl_vars']['params'], target)


@pytest.mark.parametrize('use_zarr3', [False, True])
def test_maxtext_loads_a_full_state(checkpoint, use_zarr3):
  """`load_full_state_path` of a Linen state."""
  target = saved_states.state(2)
  restored = _maxtext_checkpointer(use_zarr3).restore(
    epath.Path(checkpoint / 'state'),
    trees.abstract(target),
    restore_args=jax.tree.map(
      lambda x: ocp.type_handlers.ArrayRestoreArgs(sharding=x.sharding), target
    ),
  )
  _check(restored, _SAVED, target)


def test_maxtext_loads_a_state_with_more_leaves(checkpoint):
  """`load_full_state_path` of an NNX state: `partial_restore`."""
  target = saved_states.state(2)
  del target['opt_states']
  abstract = trees.abstract(target)
  restored = _maxtext_checkpointer(use_zarr3=True).restore(
    epath.Path(checkpoint / 'state'),
    args=ocp.args.PyTreeRestore(
      item=abstract,
      restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
      partial_restore=True,
    ),
  )
  saved = {name: _SAVED[name] for name in target}
  _check(restored, saved, target)


@pytest.mark.filterwarnings('ignore:Use `load` instead:DeprecationWarning')
def test_maxtext_loads_by_the_newer_interface_of_orbax(checkpoint):
  """`load_full_state_path` with `enable_orbax_v1`."""
  target = saved_states.state(2)
  layout = ocp_v1.options.CheckpointLayout.ORBAX
  with ocp_v1.Context(checkpoint_layout=layout):
    restored = ocp_v1.load_pytree(checkpoint, trees.abstract(target))
  _check(restored, _SAVED, target)


def test_levanter_reads_the_folders_of_arrays(leaf_checkpoint):
  """As before OCDBT."""
  target = paths.flatten(saved_states.state(2))
  manager = array_serialization.GlobalAsyncCheckpointManager()
  arrays = manager.deserialize_with_paths(
    shardings=[leaf.sharding for leaf in target.values()],
    paths=[str(leaf_checkpoint / 'state' / name) for name in target],
  )
  restored = dict(zip(target, arrays, strict=True))
  _check(restored, paths.flatten(_SAVED), target)


def _levanter_spec(state_folder, path=None):
  """Returns the specification of an array, or of the database."""
  spec = {
    'driver': 'zarr3',
    'kvstore': {
      'driver': 'ocdbt',
      'base': {'driver': 'file', 'path': f'{state_folder}/'},
    },
  }
  if path is not None:
    spec['kvstore']['path'] = path
  return spec


def test_levanter_loads_a_state(checkpoint):
  """`levanter.checkpoint.load_checkpoint` of the folder `state`."""
  folder = checkpoint / 'state'
  # By it Levanter finds the root from the folder of a branch of the tree.
  metadata = json.loads((folder / 'metadata.json').read_text())
  assert (metadata['step'], metadata['is_temporary']) == (5, False)
  assert datetime.datetime.fromisoformat(metadata['timestamp']).tzinfo is None
  target = saved_states.state(2)
  names = [
    '/'.join(map(_key, path)) for path, _ in jax.tree.leaves_with_path(target)
  ]
  store = ts.KvStore.open(_levanter_spec(folder)['kvstore']).result()
  keys = {key.decode() for key in store.list().result()}
  assert {f'{name}/zarr.json' for name in names} <= keys
  arrays = array_serialization.GlobalAsyncCheckpointManager().deserialize(
    shardings=[leaf.sharding for leaf in jax.tree.leaves(target)],
    tensorstore_specs=[_levanter_spec(folder, name) for name in names],
  )
  restored = jax.tree.unflatten(jax.tree.structure(target), arrays)
  _check(restored, _SAVED, target)


@pytest.mark.parametrize(
  'dtype',
  [
    'float32', 'float16', 'float64', 'bfloat16', 'float8_e4m3fn', 'float8_e5m2',
    'bool', 'int4', 'int8', 'uint8', 'uint16', 'int32', 'int64', 'complex64',
  ],
)  # fmt: skip
def test_every_dtype_as_zarr_3(tmp_path, dtype):
  values = np.random.default_rng(0).integers(0, 2, (4, 6)).astype(dtype)
  saver = saved_states.checkpointer(tmp_path)
  with jax.enable_x64(True):
    saver.save(0, {'a': {'b': jnp.asarray(values)}})
  saver.close()
  folder = tmp_path / 'checkpoints/checkpoint_00000000/state'
  array = ts.open(_levanter_spec(folder, 'a/b')).result()
  assert array.dtype.name == dtype
  np.testing.assert_array_equal(array.read().result(), values)
