# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Every file of a checkpoint, damaged in every way, is found when it is loaded.

A bit of a file is inverted, every one of small files; or the file is cut,
longer, empty, deleted, replaced. Every load is one kind of error that names the
file and the command that moves the checkpoint aside; none succeeds.
"""

from __future__ import annotations

import os
import random

import pytest

from pax import checkpoints
from pax.checkpoints import paths, reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from tests.faults import harness
from tests.testing import saved_states, trees

SEED = 20261122
# Files up to this size have every bit inverted, larger ones as many bits.
BITS = 500


def _loads(job, checkpoint):
  """Returns the ways to load: resume, evaluate, and list the leaves."""
  abstract = trees.abstract(saved_states.state(1, is_sharded=False))
  names = reading.leaf_names(abstract)
  return (
    lambda: saved_states.checkpointer(job).restore(abstract),
    lambda: reading.read_tree(CheckpointReader(checkpoint), abstract, names),
  )


def _check_refused(load, checkpoint, file, what):
  try:
    load()
  except checkpoints.CorruptCheckpointError as e:
    _, _, reason = str(e).partition(' is corrupt: ')
    assert str(file) in reason, (what, str(e))
    aside = checkpoint.with_name(f'corrupt_{checkpoint.name}')
    assert f'mv {checkpoint} {aside}' in reason, (what, str(e))
    return
  raise AssertionError(f'{file}: {what} was not found')


def _bits(file):
  num_bits = 8 * file.stat().st_size
  if num_bits <= BITS:
    return range(num_bits)
  ends = [*range(32), *range(num_bits - 96, num_bits)]
  others = random.Random(SEED).sample(range(num_bits), BITS - len(ends))
  return [*ends, *others]


@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
def test_every_bit(tmp_path, report, layout):
  """The load stops at the file, so that thousands take a minute."""
  directory = saved_states.save_layout(tmp_path, layout, (5,), 2)
  checkpoint = paths.steps(directory)[5]
  load = lambda: CheckpointReader(checkpoint).verify()
  for file in saved_states.files(checkpoint):
    data = file.read_bytes()
    for bit in _bits(file):
      saved_states.flip_bit(file, bit)
      _check_refused(load, checkpoint, file, f'bit {bit}')
      file.write_bytes(data)
      report(flips=1)


@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
def test_every_damage(tmp_path, report, layout):
  directory = saved_states.save_layout(tmp_path, layout)
  checkpoint = paths.steps(directory)[5]
  for file in saved_states.files(checkpoint):
    data = file.read_bytes()
    for name, damage in saved_states.DAMAGES.items():
      if file == checkpoint and name == 'deleted':
        continue  # The checkpoint before it is the newest then.
      damage(file)
      for load in _loads(tmp_path, checkpoint):
        _check_refused(load, checkpoint, file, name)
        report(damages=1)
      if file.is_dir():
        file.rmdir()
      file.write_bytes(data)
  for load in _loads(tmp_path, checkpoint):
    load()


@pytest.mark.parametrize('layout', ['spmd', 'pmap_tensorstore'])
def test_every_folder(tmp_path, report, layout):
  directory = saved_states.save_layout(tmp_path, layout)
  checkpoint = paths.steps(directory)[5]
  for folder in sorted(p for p in checkpoint.rglob('*') if p.is_dir()):
    elsewhere = tmp_path / 'elsewhere'
    folder.rename(elsewhere)
    for name in ('deleted', 'empty', 'a file'):
      if name == 'empty':
        folder.mkdir()
      elif name == 'a file':
        folder.write_text('')
      for load in _loads(tmp_path, checkpoint):
        _check_refused(load, checkpoint, folder, name)
        report(damages=1)
      if folder.is_dir():
        folder.rmdir()
      folder.unlink(missing_ok=True)
    elsewhere.rename(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read every file')
@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
def test_unreadable_files(tmp_path, report, layout):
  directory = saved_states.save_layout(tmp_path, layout)
  checkpoint = paths.steps(directory)[5]
  for file in saved_states.files(checkpoint):
    mode = file.stat().st_mode
    file.chmod(0)
    for load in _loads(tmp_path, checkpoint):
      _check_refused(load, checkpoint, file, 'unreadable')
      report(damages=1)
    file.chmod(mode)


@pytest.mark.parametrize('layout', ['pmap_one_file', 'pmap_tensorstore'])
def test_older_formats_fail_with_one_kind_of_error(tmp_path, report, layout):
  """Their input state has no checksum: some flips of it are not found."""
  directory = saved_states.save_layout(tmp_path, layout)
  checkpoint = paths.steps(directory)[5]
  saved_states.to_older_format(checkpoint)
  abstract = paths.flatten(
    trees.abstract(saved_states.state(1, is_sharded=False))
  )
  silent = 0
  for file in saved_states.files(checkpoint):
    data = file.read_bytes()
    for bit in _bits(file)[::8]:
      saved_states.flip_bit(file, bit)
      try:
        CheckpointReader(checkpoint).read(abstract)
        silent += 1
      except checkpoints.CheckpointError:
        pass
      file.write_bytes(data)
      report(flips=1)
  report(silent=silent)


def test_the_error_of_one_process_ends_all(tmp_path, report):
  """Each prints it, or that the other one ended with code 1."""
  job = harness.Job(tmp_path / 'job', num_processes=2)
  job.finish('--set=NUM_STEPS=4', '--set=SAVE_EVERY=2')
  checkpoint = job.checkpoints()[4]
  files = [p for p in (checkpoint / 'state').rglob('d/*') if p.is_file()]
  for chunk in sorted(files)[:4]:
    data = chunk.read_bytes()
    saved_states.flip_bit(chunk, 0)
    completed = job.start('--set=NUM_STEPS=6').wait()
    assert [x.returncode for x in completed] == [harness.ERROR] * 2, completed
    message = f'{chunk} is not what was written'
    assert any(message in x.stderr for x in completed), completed
    for text in (x.stderr for x in completed):
      assert message in text or 'ended with exit code 1' in text, text
    chunk.write_bytes(data)
    report(damages=1)
  job.finish('--set=NUM_STEPS=6')


def test_all_processes_fall_back(tmp_path, report):
  """Each process compares the checksums of a part of the files."""
  job = harness.Job(tmp_path / 'job', num_processes=2)
  job.finish('--set=NUM_STEPS=4', '--set=SAVE_EVERY=2')
  for _ in range(2):
    checkpoint = job.checkpoints()[4]
    aside = paths.set_aside_path(checkpoint)
    chunk = next(p for p in checkpoint.glob('state/*/d/*') if p.is_file())
    saved_states.flip_bit(chunk, 0)
    job.finish(
      *('--set=NUM_STEPS=4', '--set=SAVE_EVERY=2'),
      '--on_corrupt_checkpoint=fallback',
    )
    assert aside.exists()
    assert sorted(job.checkpoints()) == [0, 2, 4]
    report(damages=1)
  harness.check_losses(job, 4)
