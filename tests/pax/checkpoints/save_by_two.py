# SPDX-License-Identifier: Apache-2.0
"""One of two processes with two devices that save and restore together.

    python -m tests.pax.checkpoints.save_by_two ADDRESS INDEX DIR

The last line of the output is JSON: the message of each phase.
"""

# bazel: deps=//pax/checkpoints
from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pax import checkpoints
from pax.checkpoints import checkpoint_reader
from pax.checkpoints.formats import host_arrays
from tests.testing import polling, trees

_TIMEOUT_SECS = 2.0


def main(address: str, process: str, directory: str) -> None:
  """Saves steps 0 to 3, of which one fails and one is left out."""
  index = int(process)
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', 2)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(address, 2, index)
  failures = []

  def fail() -> None:
    if failures:
      raise checkpoints.CheckpointError(failures.pop())

  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(save_interval_steps=2, timeout_secs=60),
    directory,
    job=checkpoints.JobFunctions(before_write=fail),
  )
  state = _state()
  messages = {}
  assert checkpointer.save(0, state, {'rows': index})
  checkpointer.wait()
  if index == 1:
    failures.append('the disk of process 1 burns')
  assert checkpointer.save(2, state)
  messages['failed'] = _error_of_a_later_step(checkpointer, state)
  restored = checkpointer.restore(trees.abstract(state))
  messages['restored'] = [restored.step, restored.input_state]
  messages['replica'] = _restore_by_one_replica(directory)
  for layout, use_ocdbt in (('database', True), ('leaves', False)):
    _save(f'{directory}/{layout}', use_ocdbt, _large_arrays())
  messages['frozen'] = _save_frozen(f'{directory}/frozen')
  # Process 1 writes nothing of it.
  _save(f'{directory}/scalar', use_ocdbt=True, params={'w': _numbers(())})
  impatient = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(timeout_secs=_TIMEOUT_SECS), directory
  )
  done = pathlib.Path(directory, 'done')
  if index == 0:
    # No temporary files are left to remove: the first barrier is that one.
    messages['missing'] = _error(lambda: impatient.save(4, state, force=True))
    done.touch()
  else:
    polling.wait_until(done.exists)
    messages['late'] = _error(lambda: impatient.save(4, state, force=True))
  messages['checkpoints'] = sorted(
    path.name for path in pathlib.Path(directory, 'checkpoints').iterdir()
  )
  print(json.dumps(messages), flush=True)


def _save(folder: str, use_ocdbt: bool, params: dict[str, jax.Array]) -> None:
  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(use_ocdbt=use_ocdbt), folder
  )
  host_arrays._slice = _slice_part
  # A mesh of other devices than those of a part.
  with jax.set_mesh(jax.make_mesh((4,), ('x',))):
    checkpointer.save(0, {'params': params})
  checkpointer.close()


def _save_frozen(folder: str) -> list[Any]:
  """Returns the leaves after a restart of a job with a frozen one."""
  for step in (0, 5):
    checkpointer = checkpoints.create_checkpointer(
      checkpoints.CheckpointOptions(), folder
    )
    state = {'frozen': _numbers((8,), 'model'), 'step': _numbers(()) + step}
    checkpointer.set_frozen_leaves(['frozen'])
    if step:
      checkpointer.restore(trees.abstract(state))
    checkpointer.save(step, state, force=True)
    checkpointer.wait()
  restored = checkpointer.restore(trees.abstract(state)).state
  checkpointer.close()
  parts = [x.addressable_data(0) for x in restored.values()]
  return [np.asarray(part).tolist() for part in parts]


def _slice_part(data, axis, start, size, cut=host_arrays._slice) -> jax.Array:
  """Cuts a part of a shard; a whole one would be copied for nothing."""
  assert size < data.shape[axis]
  return cut(data, axis, start, size)


def _large_arrays() -> dict[str, jax.Array]:
  """Returns arrays with replicas in both processes, and one without."""
  arrays = {
    'replicated': _numbers((1024, 1024)),
    'sharded': _numbers((1024, 1024), 'model'),
    'columns': _numbers((1024, 1024), None, 'model'),
    'unique': _numbers((1024, 1024), 'replica', 'model'),
  }
  replicated = arrays['replicated']
  offloaded = replicated.sharding.with_memory_kind('pinned_host')
  return arrays | {'offloaded': jax.device_put(replicated, offloaded)}


def _numbers(shape: tuple[int, ...], *spec: str | None) -> jax.Array:
  mesh = jax.make_mesh((2, 2), ('replica', 'model'))
  values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
  sharding = NamedSharding(mesh, PartitionSpec(*spec))
  return jax.make_array_from_callback(shape, sharding, lambda i: values[i])


def _restore_by_one_replica(directory: str) -> list[Any]:
  """Returns the number of reads of this process, and the values."""
  reader = checkpoint_reader.CheckpointReader
  reads = []

  def count(self, *args, read=reader.read, **kwargs):
    reads.append(self.path)
    return read(self, *args, **kwargs)

  reader.read = count
  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(single_replica_restore=True), directory
  )
  mesh = jax.make_mesh((jax.device_count(),), ('replica',))
  sharding = NamedSharding(mesh, PartitionSpec())
  leaf = jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)
  restored = checkpointer.restore({'w': leaf})
  w = restored.state['w']
  assert w.sharding == sharding
  return [len(reads), np.asarray(w.addressable_data(0)).tolist()]


def _state() -> dict[str, jax.Array]:
  mesh = jax.make_mesh((jax.device_count(),), ('data',))
  sharding = NamedSharding(mesh, PartitionSpec('data'))
  values = np.arange(8, dtype=np.float32)
  w = jax.make_array_from_callback((8,), sharding, lambda i: values[i])
  return {'w': w}


def _error_of_a_later_step(checkpointer, state) -> str:
  """Returns the error of a step at which nothing is due."""

  def has_failed() -> bool:
    messages.append(_error(lambda: checkpointer.save(3, state)))
    return bool(messages[-1])

  messages: list[str] = []
  polling.wait_until(has_failed)
  return messages[-1]


def _error(function) -> str:
  try:
    function()
  except checkpoints.CheckpointError as e:
    return str(e)
  return ''


if __name__ == '__main__':
  main(*sys.argv[1:])
