# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//tests/pax/checkpoints:save_by_two
"""Two real processes save, fail and restore together."""

from __future__ import annotations

import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

from pax.checkpoints.checkpoint_reader import CheckpointReader
from tests.integration import binary
from tests.testing import programs

_MODULE = 'tests.pax.checkpoints.save_by_two'


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """The job directory of both processes."""
  return tmp_path_factory.mktemp('job')


@pytest.fixture(scope='module')
def messages(directory):
  """The messages of both processes."""
  address = f'localhost:{binary.free_port()}'
  processes = [
    programs.Program(
      [_MODULE, address, str(index), str(directory)],
      programs.environment(),
      (_MODULE,),
    )
    for index in range(2)
  ]
  completed = [process.wait() for process in processes]
  assert [c.returncode for c in completed] == [0, 0], completed
  return [json.loads(c.stdout.splitlines()[-1]) for c in completed]


def test_a_failure_of_one_fails_both_at_the_next_step(messages):
  first, second = messages
  assert first['failed'] == 'process 1 of 2: the disk of process 1 burns'
  assert second['failed'] == 'the disk of process 1 burns'


def test_both_restore_the_last_complete_checkpoint(messages):
  assert [m['restored'] for m in messages] == [
    [0, {'rows': 0}],
    [0, {'rows': 1}],
  ]
  for message in messages:
    assert 'checkpoint_00000002' not in message['checkpoints']


def test_one_replica_reads_for_both(messages):
  values = list(range(8))
  assert [m['replica'] for m in messages] == [[1, values], [0, values]]


def test_frozen_leaves_are_saved_once_by_both(directory, messages):
  folder = directory / 'frozen/checkpoints'
  *steps, frozen = sorted(path.name for path in folder.glob('[!.]*'))
  assert steps == ['checkpoint_00000000', 'checkpoint_00000005']
  assert frozen.startswith('frozen_00000000_')
  # A device has the first half of the values, in both processes.
  assert [m['frozen'] for m in messages] == 2 * [[[0, 1, 2, 3], 5]]


def test_the_deadline_names_the_process_that_is_missing(messages):
  first, second = messages
  assert first['missing'].startswith(
    'process 1 of 2 did not reach the barrier'
    " 'temporary files are removed' within 2 s"
  )
  assert 'after the others had stopped waiting' in second['late']


@pytest.mark.parametrize('layout', ['database', 'leaves'])
def test_replicas_of_large_arrays_divide_the_writing(
  directory, messages, layout
):
  (path,) = (directory / layout / 'checkpoints').iterdir()
  written = [
    sum(size for size, _ in json.loads(file.read_text())['files'].values())
    for file in path.glob('**/manifest/process_*')
  ]
  # Five arrays of 4 MiB, each once; one, on the host, by one process.
  assert sorted(written) == pytest.approx([8 * 2**20, 12 * 2**20], abs=2**14)
  values = np.arange(2**20, dtype=np.float32).reshape(1024, 1024)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  leaf = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
  names = ('replicated', 'sharded', 'columns', 'unique', 'offloaded')
  abstract = {f'params.{name}': leaf for name in names}
  restored = [CheckpointReader(path).read(abstract)]
  if layout == 'database':
    tree = {'params': dict.fromkeys(names, leaf)}
    args = ocp.args.PyTreeRestore(
      tree, ocp.checkpoint_utils.construct_restore_args(tree)
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      restored.append(checkpointer.restore(path / 'state', args)['params'])
    restored.append({name: _read_zarr3(path, name) for name in names})
  for array in (array for state in restored for array in state.values()):
    np.testing.assert_array_equal(array, values)


def test_a_process_that_writes_no_array(directory, messages):
  (path,) = (directory / 'scalar' / 'checkpoints').iterdir()
  assert not (path / 'state/ocdbt.process_1').exists()
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  leaf = jax.ShapeDtypeStruct((), np.float32, sharding=sharding)
  assert CheckpointReader(path).read({'params.w': leaf}) == {'params.w': 0}


def _read_zarr3(checkpoint, name):
  database = {'driver': 'ocdbt', 'base': f'file://{checkpoint}/state/'}
  kvstore = {**database, 'path': f'params/{name}/'}
  return (
    ts.open({'driver': 'zarr3', 'kvstore': kvstore}).result().read().result()
  )
