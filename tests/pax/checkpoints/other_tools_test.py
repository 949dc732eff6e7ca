# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Checkpoints, opened by the calls with which MaxText and Levanter open theirs.

The calls are those of AI-Hypercomputer/maxtext e591f30c (2026-08-22) and
stanford-crfm/levanter 9263f81e (2025-09-26), on trees of ours.
"""

from __future__ import annotations

import jax
import orbax.checkpoint as ocp
import pytest
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
  target = paths.flatten(saved_states.state(2))
  manager = array_serialization.GlobalAsyncCheckpointManager()
  arrays = manager.deserialize_with_paths(
    shardings=[leaf.sharding for leaf in target.values()],
    paths=[str(leaf_checkpoint / 'state' / name) for name in target],
  )
  restored = dict(zip(target, arrays, strict=True))
  _check(restored, paths.flatten(_SAVED), target)


def test_levanter_reads_the_arrays_of_a_database(checkpoint):
  target = paths.flatten(saved_states.state(2))
  base = {'driver': 'file', 'path': str(checkpoint / 'state')}
  specs = [
    {
      'driver': 'zarr',
      'kvstore': {
        'driver': 'ocdbt',
        'base': base,
        # The names in the database are key paths.
        'path': name.replace('_0_', '.0.'),
      },
    }
    for name in target
  ]
  manager = array_serialization.GlobalAsyncCheckpointManager()
  arrays = manager.deserialize(
    shardings=[leaf.sharding for leaf in target.values()],
    tensorstore_specs=specs,
  )
  restored = dict(zip(target, arrays, strict=True))
  _check(restored, paths.flatten(_SAVED), target)
