# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Checkpoints in the format of Orbax, which opens them without this library."""

from __future__ import annotations

import asyncio
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath

from pax import checkpoints
from pax.checkpoints import paths
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.formats import (
  database_writer,
  orbax_format,
  tensorstore_format,
)
from tests.testing import saved_states, trees


def _write(directory, snapshot):
  staging = directory / 'tmp_checkpoint_00000001'
  staging.mkdir(parents=True, exist_ok=True)
  return snapshot.write(staging)


def test_layout(tmp_path):
  directory = saved_states.save(tmp_path, steps=(0,)) / 'checkpoint_00000000'
  assert {p.name for p in directory.iterdir()} == {
    '_CHECKPOINT_METADATA',
    'state',
    'metadata',
  }
  assert {p.name for p in (directory / 'metadata').iterdir()} == {
    'metadata', 'train_input', 'manifest'
  }  # fmt: skip
  assert {p.name for p in (directory / 'state').iterdir()} == {
    '_METADATA', '_sharding', 'd', 'manifest.ocdbt', 'metadata.json',
    'ocdbt.process_0',
  }  # fmt: skip
  metadata = json.loads((directory / 'metadata/metadata').read_text())
  assert (metadata['version'], metadata['step']) == (1.2, 0)
  assert list(metadata['train_state_metadata']) == ['mdl_vars']
  assert (directory / 'metadata/train_input/process_0-of-1').exists()
  assert 'mdl_vars.params.rows' in CheckpointReader(directory).shapes


def test_a_large_state_is_divided_into_files(tmp_path, monkeypatch):
  monkeypatch.setattr(orbax_format, '_MIN_FILE_BYTES', 2**16)
  state = {f'w{i}': jnp.full((2**14,), i, jnp.float32) for i in range(8)}
  _write(tmp_path, orbax_format.Snapshot(state))
  folder = tmp_path / 'tmp_checkpoint_00000001/state/ocdbt.process_0/d'
  sizes = [file.stat().st_size for file in folder.iterdir()]
  assert sum(2**16 <= size < 2**17 for size in sizes) == 8


def test_orbax_opens_the_state_and_the_metadata(tmp_path):
  directory = saved_states.save(tmp_path)
  state = saved_states.state(4, 6.0)
  target = saved_states.state(2, 6.0)
  manager = ocp.CheckpointManager(
    epath.Path(directory),
    options=ocp.CheckpointManagerOptions(
      step_prefix='checkpoint', step_format_fixed_length=8
    ),
  )
  assert manager.all_steps() == [0, 5]
  items = manager.restore(
    5,
    args=ocp.args.Composite(
      state=ocp.args.PyTreeRestore(
        target, ocp.checkpoint_utils.construct_restore_args(target)
      ),
      metadata=ocp.args.JsonRestore(),
    ),
  )
  manager.close()
  saved_states.check_equal(items.state, state)
  assert jax.tree.all(
    jax.tree.map(lambda a, b: a.sharding == b.sharding, items.state, target)
  )
  assert items.metadata['step'] == 5
  with ocp.StandardCheckpointer() as checkpointer:
    restored = checkpointer.restore(directory / 'checkpoint_00000005' / 'state')
  saved_states.check_equal(restored, state)


def test_orbax_restores_all_items_without_arguments(tmp_path):
  directory = saved_states.save(tmp_path)
  with ocp.CheckpointManager(
    epath.Path(directory),
    options=ocp.CheckpointManagerOptions(
      step_prefix='checkpoint', step_format_fixed_length=8
    ),
  ) as manager:
    # It restores the shardings of the state that was saved.
    with pytest.warns(UserWarning, match='Sharding info not provided'):
      items = manager.restore(5)
  assert set(items.keys()) == {'state', 'metadata'}
  saved_states.check_equal(items['state'], saved_states.state(4, 6.0))
  assert items['metadata']['step'] == 5


def test_shardings_are_recorded_as_orbax_does(tmp_path):
  state = saved_states.state(4)
  state['mdl_vars']['name/ä?'] = jnp.ones(3)
  saver = saved_states.checkpointer(tmp_path)
  saver.save(0, state)
  saver.close()
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / 'orbax', state)
  file = tmp_path / 'checkpoints/checkpoint_00000000/state/_sharding'
  reference = tmp_path / 'orbax/_sharding'
  assert json.loads(file.read_text()) == json.loads(reference.read_text())


def test_reads_the_places_of_older_versions(tmp_path):
  """The manifest and the input states were next to the metadata."""
  directory = saved_states.save(tmp_path)
  checkpoint = directory / 'checkpoint_00000005'
  saved_states.to_older_places(checkpoint)
  reader = saved_states.checkpointer(tmp_path)
  restored = reader.restore(trees.abstract(saved_states.state(2)))
  saved_states.check_equal(restored.state, saved_states.state(2, 6.0))
  assert restored.input_state == {'examples': 5}
  file = checkpoint / 'train_input/process_0-of-1'
  saved_states.flip_bit(file, 3)
  with pytest.raises(checkpoints.CorruptCheckpointError, match=str(file)):
    reader.restore(trees.abstract(saved_states.state(2)))


def test_masked_and_empty_nodes_and_arrays_without_elements(tmp_path):
  state = {
    'step': jnp.uint32(1),
    'mdl_vars': {'a/b': jnp.ones(3), 'masked': optax.MaskedNode()},
    'opt_states': [
      {'none': None, 'tuple': (), 'no_rows': jnp.zeros((0, 4), jnp.bfloat16)}
    ],
    'extra_state': (),
  }
  saver = saved_states.checkpointer(tmp_path)
  saver.save(0, state)
  saver.close()
  restored = saved_states.checkpointer(tmp_path).restore(trees.abstract(state))
  assert jax.tree.structure(restored.state) == jax.tree.structure(state)
  saved_states.check_equal(restored.state, state)
  rows = restored.state['opt_states'][0]['no_rows']
  assert rows.dtype == jnp.bfloat16


def test_large_shards_are_written_in_chunks(tmp_path, monkeypatch):
  monkeypatch.setattr(tensorstore_format, 'MAX_CHUNK_BYTES', 128)
  saved_states.save(tmp_path)
  target = saved_states.state(8)
  restored = saved_states.checkpointer(tmp_path).restore(trees.abstract(target))
  saved_states.check_equal(restored.state, saved_states.state(8, 6.0))


@pytest.mark.parametrize('is_moved', [False, True])
def test_a_directory_that_vanishes_before_the_write(
  tmp_path, monkeypatch, is_moved
):
  """Nothing appears at the old path."""
  job = tmp_path / 'job'

  def vanish(*args, write=database_writer.write, **kwargs):
    if is_moved:
      job.rename(tmp_path / 'moved')
    else:
      shutil.rmtree(job)
    write(*args, **kwargs)

  monkeypatch.setattr(database_writer, 'write', vanish)
  # A directory that was moved is missed when the databases are merged.
  message = f"'{job}'" if is_moved else f'Orbax failed at {job}/'
  with pytest.raises(OSError, match=message):
    _write(job, orbax_format.Snapshot(saved_states.state(1)))
  assert not job.exists()


def test_saves_below_an_event_loop(tmp_path):
  async def save():
    saver = saved_states.checkpointer(tmp_path)
    saver.save(0, saved_states.state(1))
    saver.close()

  asyncio.run(save())
  assert list(paths.steps(tmp_path / 'checkpoints')) == [0]


def test_an_error_of_the_disk_is_one_line_with_the_cause(tmp_path):
  snapshot = orbax_format.Snapshot(saved_states.state(1))
  staging = tmp_path / 'tmp_checkpoint_00000001'
  staging.mkdir()
  (staging / 'state').mkdir()
  (staging / 'state' / 'ocdbt.process_0').write_text('in the way')
  with pytest.raises(OSError, match='Orbax failed at') as error:
    snapshot.write(staging)
  assert 'Not a directory' in str(error.value)
  assert '\n' not in str(error.value)
  assert 'proc/self' not in str(error.value)


def test_older_checkpoints_continue_in_the_new_format(tmp_path):
  saved_states.save(tmp_path, steps=(0,), use_ocdbt=False)
  directory = saved_states.save(tmp_path, steps=(5,))
  abstract = trees.abstract(saved_states.state(2))
  reader = saved_states.checkpointer(tmp_path)
  for step in (0, 5):
    state = reader.restore(abstract, step).state
    saved_states.check_equal(state, saved_states.state(2, 1.0 + step))
  assert not (directory / 'checkpoint_00000000/state/d').exists()


def test_the_state_is_compared_with_the_model_by_recorded_shapes(tmp_path):
  saved_states.save(tmp_path)
  abstract = trees.abstract(saved_states.state(2))
  abstract['mdl_vars']['params']['rows'] = jax.ShapeDtypeStruct(
    (16, 25), np.float32
  )
  with pytest.raises(checkpoints.CheckpointError, match=r'float32\[16, 24\]'):
    saved_states.checkpointer(tmp_path).restore(abstract)


def test_a_checkpoint_that_orbax_wrote_alone_is_not_called_corrupt(tmp_path):
  directory = saved_states.save(tmp_path)
  options = ocp.CheckpointManagerOptions(step_prefix='checkpoint')
  with ocp.CheckpointManager(directory, options=options) as manager:
    manager.save(9, args=ocp.args.StandardSave({'w': np.ones(3)}))
  reader = saved_states.checkpointer(tmp_path, skips_corrupt=True)
  with pytest.raises(checkpoints.CheckpointError) as error:
    reader.restore(trees.abstract(saved_states.state(2)))
  assert not isinstance(error.value, checkpoints.CorruptCheckpointError)
  assert "metadata, got ['default']: Orbax wrote it" in str(error.value)
  assert (directory / 'checkpoint_9').exists()
