# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear message, a quick non-zero exit, nothing lost."""

# bazel: size=large
from __future__ import annotations

import fcntl
import pathlib
import shutil
import time

import pytest

from pax import main
from tests.integration import binary

EXP = f'{binary.EXPERIMENTS}.TinySpmd'


def _fails(capsys, *words: str) -> str:
  """Runs main in this process; returns its one line about the error."""
  started = time.monotonic()
  assert main.main(['pax', '--compilation_cache_dir=', *words]) == 1
  assert time.monotonic() - started < 20
  lines = capsys.readouterr().err.strip().splitlines()
  assert len(lines) == 1, lines
  assert lines[0].startswith('pax: error: ')
  return lines[0]


def test_unknown_flag(capsys, tmp_path):
  message = _fails(capsys, '--exq=x', f'--job_log_dir={tmp_path}')
  assert 'no flag --exq; did you mean --exp' in message
  assert not any(tmp_path.iterdir())


def test_nothing_to_run(capsys, tmp_path):
  assert '--exp=tasks.lm' in _fails(capsys, f'--job_log_dir={tmp_path}')
  assert '--job_log_dir=/tmp' in _fails(capsys, f'--exp={EXP}')
  message = _fails(
    capsys, f'--exp={EXP}', f'--job_log_dir={tmp_path}', '--mode=dream'
  )
  assert '--mode must be one of train, eval' in message and 'dream' in message


def test_unknown_experiment_lists_near_names(capsys, tmp_path):
  message = _fails(
    capsys, f'--exp={binary.EXPERIMENTS}.TinySpdm', f'--job_log_dir={tmp_path}'
  )
  assert 'TinySpmd' in message


@pytest.mark.parametrize(
  ('setting', 'hint'),
  [
    ('NUM_STEP=3', 'did you mean NUM_STEPS'),
    ('NUM_STEPS=three', 'wants an integer'),
    ('task.train.num_train_step=3', 'did you mean num_train_steps'),
    ('task.tain.num_train_steps=3', 'did you mean train'),
  ],
)
def test_misspelt_setting(capsys, tmp_path, setting, hint):
  message = _fails(
    capsys, f'--exp={EXP}', f'--job_log_dir={tmp_path}', f'--set={setting}'
  )
  assert hint in message and f'--set {setting}' in message
  assert not (tmp_path / 'checkpoints').exists()


def test_unwritable_job_dir(capsys, tmp_path):
  (tmp_path / 'file').write_text('')
  message = _fails(
    capsys, f'--exp={EXP}', f'--job_log_dir={tmp_path / "file" / "job"}'
  )
  assert 'cannot write to --job_log_dir=' in message


def test_a_job_dir_in_use(capsys, tmp_path):
  (tmp_path / 'logs').mkdir()
  with (tmp_path / '.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    message = _fails(capsys, f'--exp={EXP}', f'--job_log_dir={tmp_path}')
  assert 'another process trains in' in message


def test_too_few_devices(capsys, tmp_path):
  message = _fails(
    capsys,
    f'--exp={EXP}',
    f'--job_log_dir={tmp_path}',
    '--set=ICI_MESH_SHAPE=[1,16,1]',
  )
  assert '16' in message and '--host_device_count=16' in message


def test_broken_data_do_not_hang(tmp_path):
  ended = binary.run('TinyBroken', tmp_path)
  assert ended.returncode == 1
  errors = [x for x in ended.stderr.splitlines() if x.startswith('pax: error')]
  assert len(errors) == 1
  assert 'OSError: the disk with the data is gone' in errors[0]
  assert 'Traceback' not in ended.stderr
  assert 'Traceback' in (tmp_path / 'logs' / 'train_0.log').read_text()
  assert binary.checkpoint_names(tmp_path) == ['checkpoint_00000000']


def test_a_corrupt_newest_checkpoint(tmp_path):
  assert binary.run('TinySpmd', tmp_path).returncode == 0
  newest = _damage_newest(tmp_path)
  before = _checkpoint_files(tmp_path)
  started = time.monotonic()
  ended = binary.run('TinySpmd', tmp_path, '--set=NUM_STEPS=30')
  assert time.monotonic() - started < 30
  assert ended.returncode == 1
  lines = ended.stderr.strip().splitlines()
  assert len(lines) == 1, lines
  assert f'checkpoint {newest} is corrupt' in lines[0]
  assert 'To continue from step 10' in lines[0]
  assert _checkpoint_files(tmp_path) == before


def test_falls_back_from_a_corrupt_checkpoint(tmp_path):
  whole, damaged = tmp_path / 'whole', tmp_path / 'damaged'
  assert binary.run('TinySpmd', whole).returncode == 0
  shutil.copytree(whole, damaged)
  newest = _damage_newest(damaged)
  flags = ('--set=NUM_STEPS=30', '--on_corrupt_checkpoint=fallback')
  for job_log_dir in (whole, damaged):
    ended = binary.run('TinySpmd', job_log_dir, *flags)
    assert ended.returncode == 0, ended.stderr
  assert f'checkpoint {newest} is corrupt' in ended.stderr
  assert binary.checkpoint_names(damaged) == [
    *binary.checkpoint_names(whole),
    f'corrupt_{newest.name}',
  ]
  # Steps 10 to 20 are computed again, with the same result.
  assert binary.loss_bits(damaged) == binary.loss_bits(whole)


def _damage_newest(job_log_dir: pathlib.Path) -> pathlib.Path:
  newest = job_log_dir / 'checkpoints' / 'checkpoint_00000020'
  data = next(newest.glob('state/ocdbt.process_0/d/*'))
  data.write_bytes(data.read_bytes()[:-1])
  return newest


def _checkpoint_files(job_log_dir: pathlib.Path) -> dict[str, bytes]:
  files = (job_log_dir / 'checkpoints').rglob('*')
  return {str(p): p.read_bytes() for p in files if p.is_file()}
