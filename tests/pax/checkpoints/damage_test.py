# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Damaged files are found and named, and stray files are no checkpoints.

tests/faults/damage_test.py flips every bit.
"""

from __future__ import annotations

import errno
import io
import json
import os
import random

import jax
import numpy as np
import pytest
from flax import serialization

from pax import checkpoints
from pax.checkpoints import paths, reading, source_checkpoint
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.formats import flax_format
from tests.testing import saved_states, trees

SEED = 20261122
FLIPS = 2


def _check_refused(directory, checkpoint, file):
  """Checks the error of each way to load the newest checkpoint."""
  abstract = trees.abstract(saved_states.state(1, is_sharded=False))
  loads = [
    lambda: saved_states.checkpointer(directory).restore(abstract),
    lambda: reading.read_tree(
      CheckpointReader(checkpoint), abstract, reading.leaf_names(abstract)
    ),
  ]
  for load in loads:
    with pytest.raises(checkpoints.CorruptCheckpointError) as error:
      load()
    message = str(error.value)
    aside = checkpoint.with_name(f'corrupt_{checkpoint.name}')
    assert str(file) in message.partition(' is corrupt: ')[2], message
    assert 'To continue from step 0, move it aside' in message
    assert message.endswith(f'mv {checkpoint} {aside}')


@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
def test_every_file_is_covered(tmp_path, layout):
  directory = saved_states.save_layout(tmp_path, layout)
  chance = random.Random(SEED)
  checkpoint = paths.steps(directory)[5]
  for file in saved_states.files(checkpoint):
    data, last = file.read_bytes(), 8 * file.stat().st_size - 1
    for bit in [0, last, *(chance.randint(0, last) for _ in range(FLIPS))]:
      saved_states.flip_bit(file, bit)
      _check_refused(tmp_path, checkpoint, file)
      file.write_bytes(data)
    for name in ('deleted', 'cut by a byte', 'longer by a line', 'a folder'):
      if checkpoint == file and name in ('deleted', 'a folder'):
        continue
      saved_states.DAMAGES[name](file)
      _check_refused(tmp_path, checkpoint, file)
      if file.is_dir():
        file.rmdir()
      file.write_bytes(data)
  abstract = trees.abstract(saved_states.state(2))
  assert saved_states.checkpointer(tmp_path).restore(abstract).step == 5


@pytest.mark.parametrize(
  'name',
  [
    'state/step/1',
    'state/d/0123456789abcdef0123456789abcdef',
    'state/ocdbt.process_1/manifest.ocdbt',
    'metadata/train_input/process_1-of-2',
    'metadata/manifest/process_1-of-2.json',
    'metadata/manifest/notes.txt',
    'manifest/notes.txt',
    'train_input/process_0-of-1',
    'metadata/d/manifest/notes.txt',
    'notes.txt',
  ],
)
def test_an_unexpected_file_is_refused(tmp_path, name):
  checkpoint = saved_states.save(tmp_path) / 'checkpoint_00000005'
  file = checkpoint / name
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_bytes(b'{}')
  _check_refused(tmp_path, checkpoint, file)


def test_hidden_files_of_file_systems_are_ignored(tmp_path):
  checkpoint = saved_states.save(tmp_path) / 'checkpoint_00000005'
  folders = ('.', 'state/d', 'metadata/manifest', 'metadata/train_input')
  for folder in folders:
    (checkpoint / folder / '.nfs0001').write_bytes(b'x')
  abstract = trees.abstract(saved_states.state(1))
  restored = saved_states.checkpointer(tmp_path).restore(abstract)
  assert restored.input_state == {'examples': 5}


@pytest.mark.parametrize(
  'folder',
  [
    'state/d',
    'state/ocdbt.process_0',
    'state',
    'metadata/manifest',
    'metadata/train_input',
    'metadata',
  ],
)
def test_a_folder_that_became_a_file_is_refused(tmp_path, folder):
  checkpoint = saved_states.save(tmp_path) / 'checkpoint_00000005'
  (checkpoint / folder).rename(tmp_path / 'elsewhere')
  (checkpoint / folder).write_bytes(b'')
  _check_refused(tmp_path, checkpoint, checkpoint / folder)


@pytest.mark.parametrize(
  'folder',
  ['metadata', 'metadata/manifest', 'metadata/train_input', 'state', 'state/d'],
)
def test_an_empty_folder_is_refused(tmp_path, folder):
  checkpoint = saved_states.save(tmp_path) / 'checkpoint_00000005'
  (checkpoint / folder).rename(tmp_path / 'elsewhere')
  (checkpoint / folder).mkdir()
  _check_refused(tmp_path, checkpoint, checkpoint / folder)


def test_moving_it_aside_continues_from_the_older(tmp_path):
  directory = saved_states.save(tmp_path)
  checkpoint = directory / 'checkpoint_00000005'
  (directory / 'corrupt_checkpoint_00000005').mkdir()
  (checkpoint / 'metadata/metadata').unlink()
  before = sorted(p.name for p in tmp_path.rglob('*'))
  abstract = trees.abstract(saved_states.state(4))
  aside = directory / 'corrupt_checkpoint_00000005_2'
  with pytest.raises(
    checkpoints.CorruptCheckpointError, match=f'mv {checkpoint} {aside}$'
  ):
    saved_states.checkpointer(tmp_path).restore(abstract)
  assert sorted(p.name for p in tmp_path.rglob('*')) == before
  checkpoint.rename(aside)
  assert saved_states.checkpointer(tmp_path).restore(abstract).step == 0


def test_skips_corrupt_checkpoints(tmp_path):
  # Steps 0, 5 and 10.
  directory = saved_states.save(tmp_path)
  options = checkpoints.CheckpointOptions(skips_corrupt=True)
  checkpointer = checkpoints.create_checkpointer(options, str(tmp_path))
  state = saved_states.state(4)
  checkpointer.save(10, state, force=True)
  checkpointer.wait()
  for step in (5, 10):
    (directory / f'checkpoint_{step:08d}/metadata/metadata').unlink()
  restored = checkpointer.restore(trees.abstract(state))
  assert restored.step == checkpointer.latest_step() == 0
  assert sorted(p.name for p in directory.iterdir()) == [
    'checkpoint_00000000',
    'corrupt_checkpoint_00000005',
    'corrupt_checkpoint_00000010',
  ]
  # The steps are saved anew.
  assert checkpointer.save(5, state, force=True)
  checkpointer.wait()
  assert checkpointer.restore(trees.abstract(state)).step == 5
  checkpointer.close()


def test_renames_nothing_if_all_checkpoints_are_corrupt(tmp_path):
  directory = saved_states.save(tmp_path)
  for step in (0, 5):
    (directory / f'checkpoint_{step:08d}/metadata/metadata').unlink()
  before = sorted(p.name for p in tmp_path.rglob('*'))
  options = checkpoints.CheckpointOptions(skips_corrupt=True)
  checkpointer = checkpoints.create_checkpointer(options, str(tmp_path))
  with pytest.raises(
    checkpoints.CorruptCheckpointError,
    match=r'none of the 2 checkpoints .* is intact; of the newest, .*00005/'
    r'metadata/metadata is missing\. Nothing was .* start from step 0, .*: mv '
    f'{directory} {tmp_path}/corrupt_checkpoints$',
  ):
    checkpointer.restore(trees.abstract(saved_states.state(4)))
  assert sorted(p.name for p in tmp_path.rglob('*')) == before


@pytest.mark.parametrize('code', [errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize('is_data', [False, True])
@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_files_that_cannot_be_read_are_not_set_aside(
  tmp_path, monkeypatch, kind, use_ocdbt, is_data, code
):
  directory = saved_states.save(tmp_path, kind, use_ocdbt=use_ocdbt)
  _, newest = reading.find_checkpoint(tmp_path)
  part = newest / 'state' if is_data and newest.is_dir() else newest
  real_open = io.open

  def fail(file, *args, **kwargs):
    if str(file).startswith(str(part)):
      raise OSError(code, os.strerror(code), str(file))
    return real_open(file, *args, **kwargs)

  checkpointer = saved_states.checkpointer(tmp_path, kind, skips_corrupt=True)
  with monkeypatch.context() as patch:
    patch.setattr(io, 'open', fail)
    message = f'{newest} cannot be read: .*{os.strerror(code)}'
    with pytest.raises(checkpoints.CheckpointError, match=message) as error:
      checkpointer.restore(trees.abstract(saved_states.state(4)))
  assert not isinstance(error.value, checkpoints.CorruptCheckpointError)
  assert not list(directory.glob('corrupt_*'))
  assert checkpointer.restore(trees.abstract(saved_states.state(4))).step == 5


def test_a_step_that_was_asked_for_is_not_replaced(tmp_path):
  directory = saved_states.save(tmp_path)
  (directory / 'checkpoint_00000005/metadata/metadata').unlink()
  options = checkpoints.CheckpointOptions(skips_corrupt=True)
  checkpointer = checkpoints.create_checkpointer(options, str(tmp_path))
  with pytest.raises(checkpoints.CorruptCheckpointError):
    checkpointer.restore(trees.abstract(saved_states.state(4)), 5)
  assert (directory / 'checkpoint_00000005').exists()


@pytest.mark.parametrize('kind', [saved_states.GDA, saved_states.FLAX])
def test_reads_the_older_format(tmp_path, kind):
  directory = saved_states.save(tmp_path, kind, use_ocdbt=False)
  checkpoint = paths.steps(directory)[5]
  saved_states.to_older_format(checkpoint)
  abstract = trees.abstract(saved_states.state(2))
  restored = saved_states.checkpointer(tmp_path).restore(abstract)
  saved_states.check_equal(restored.state, saved_states.state(2, 6.0))
  assert restored.input_state == {'examples': 5}


def test_damage_to_the_older_format_is_one_kind_of_error(tmp_path):
  chance = random.Random(SEED)
  directory = saved_states.save(tmp_path, saved_states.FLAX)
  checkpoint = directory / 'checkpoint_5'
  saved_states.to_older_format(checkpoint)
  data = checkpoint.read_bytes()
  num_errors = 0
  for bit in chance.sample(range(8 * len(data)), 200):
    saved_states.flip_bit(checkpoint, bit)
    try:
      CheckpointReader(checkpoint)
    except checkpoints.CorruptCheckpointError:
      num_errors += 1
    checkpoint.write_bytes(data)
  assert num_errors > 150


def test_the_checksum_of_the_one_file_is_crc32_of_what_precedes_it(tmp_path):
  file = tmp_path / 'file'
  leaves = {'z': np.arange(5.0), 'a': np.float32(2)}
  flax_format.write(file, leaves, {'step': 3}, {'process_0-of-1': '{}'})
  state, metadata, train_input = flax_format.read(file)
  saved_states.check_equal(state, leaves)
  assert (metadata, train_input) == ({'step': 3}, {'process_0-of-1': '{}'})
  # Flax itself reads the file.
  tree = serialization.msgpack_restore(file.read_bytes())
  assert tree['crc32'] == _crc32(file.read_bytes()[:-4])


def _crc32(data):
  """CRC-32 bit by bit, as ITU-T V.42 defines it."""
  remainder = 0xFFFFFFFF
  for byte in data:
    remainder ^= byte
    for _ in range(8):
      remainder = remainder >> 1 ^ (0xEDB88320 if remainder & 1 else 0)
  return remainder ^ 0xFFFFFFFF


@pytest.mark.parametrize(
  'name', ['20261122', 'checkpoint_00000010', 'checkpoint_010']
)
def test_a_stray_file_is_no_checkpoint(tmp_path, caplog, name):
  caplog.set_level('WARNING')
  directory = saved_states.save(tmp_path)
  stray = directory / name
  stray.write_text('notes')
  checkpointer = saved_states.checkpointer(tmp_path)
  assert checkpointer.latest_step() == 5
  assert reading.find_checkpoint(tmp_path)[0] == 5
  assert [r.getMessage() for r in caplog.records] == [
    f'{stray} is ignored: the file has the name of a checkpoint and is none;'
    ' move it out of this folder'
  ]
  assert stray.read_text() == 'notes'


def test_a_stray_folder_is_no_checkpoint(tmp_path):
  directory = saved_states.save(tmp_path)
  (directory / '20261122').mkdir()
  (directory / '20261122' / 'notes').write_text('')
  assert list(paths.steps(directory)) == [0, 5]


def test_a_damaged_checkpoint_is_not_taken_for_a_stray_one(tmp_path):
  directory = saved_states.save(tmp_path, saved_states.FLAX)
  (directory / 'checkpoint_10').write_bytes(b'')
  (directory / 'checkpoint_00000015').mkdir()
  (directory / '00000020').write_bytes(
    (directory / 'checkpoint_5').read_bytes()
  )
  assert list(paths.steps(directory)) == [0, 5, 10, 15, 20]


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_overwrites_nothing(tmp_path, kind, use_ocdbt):
  checkpointer = saved_states.checkpointer(tmp_path, kind, use_ocdbt=use_ocdbt)
  final = tmp_path / 'checkpoints' / paths.checkpoint_name(5, kind)
  final.parent.mkdir()
  checkpointer.save(0, saved_states.state(1))
  checkpointer.wait()
  final.write_text('notes')
  checkpointer.save(5, saved_states.state(1))
  with pytest.raises(checkpoints.CheckpointError, match=f'mv {final} '):
    checkpointer.close()
  assert final.read_text() == 'notes'


@pytest.mark.parametrize('use_ocdbt', [False, True])
def test_the_manifest_lists_all_other_files(tmp_path, use_ocdbt):
  directory = saved_states.save(tmp_path, steps=(0,), use_ocdbt=use_ocdbt)
  checkpoint = directory / 'checkpoint_00000000'
  folder = 'metadata/manifest' if use_ocdbt else 'manifest'
  file = checkpoint / folder / 'process_0-of-1.json'
  listed = {checkpoint / name for name in json.loads(file.read_text())['files']}
  assert listed | {file} == set(saved_states.files(checkpoint))


def test_reads_only_the_leaves_it_needs(tmp_path):
  directory = saved_states.save(tmp_path, use_ocdbt=False)
  checkpoint = directory / 'checkpoint_00000005'
  saved_states.flip_bit(checkpoint / 'state/mdl_vars.params.rows/0.0', 3)
  step = {'step': jax.ShapeDtypeStruct((), np.uint32)}
  assert int(CheckpointReader(checkpoint).read(step)['step']) == 7


@pytest.mark.parametrize(
  ('layout', 'name'),
  [
    ('spmd', 'metadata/metadata'),
    ('pmap_tensorstore', 'state/step/.zarray'),
    ('pmap_one_file', ''),
  ],
)
def test_initialization_names_the_damage_and_the_remedy(tmp_path, layout, name):
  checkpoint = paths.steps(saved_states.save_layout(tmp_path, layout))[5]
  file = checkpoint / name
  saved_states.flip_bit(file, 100)
  with pytest.raises(checkpoints.CorruptCheckpointError) as error:
    source_checkpoint.SourceCheckpoint.open(str(tmp_path))
  assert f'{file} is not what was written' in str(error.value)
  assert f'mv {checkpoint} ' in str(error.value)
