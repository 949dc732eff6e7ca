# SPDX-License-Identifier: Apache-2.0
"""The quickstart's .par trains where there is nothing but glibc."""

# bazel: data=//pax/tasks/lm/params:TinyLm.par
# bazel: size=large
from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

_PAR = pathlib.Path('pax/tasks/lm/params/TinyLm.par')
_GLIBC = ('libc', 'libm', 'libdl', 'libpthread', 'librt', 'libresolv')
_CLONE_NEWNS, _CLONE_NEWUSER, _MS_BIND = 0x20000, 0x10000000, 4096
_SCALE_DOWN = (
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=16',
  '--set=HIDDEN_DIMS=32',
  '--set=MAX_SEQ_LEN=64',
  '--set=NUM_PIECES=512',
  '--set=HELD_OUT_PERCENT=1',
  '--set=task.train.num_train_steps=3',
)

pytestmark = pytest.mark.skipif(
  not _PAR.exists(), reason='Bazel builds what this runs'
)


def _glibc_only(root: pathlib.Path) -> None:
  """Makes a root that has glibc, /proc, a little of /dev and an empty /tmp."""
  loader = pathlib.Path('/lib64/ld-linux-x86-64.so.2')
  libraries = pathlib.Path('/lib/x86_64-linux-gnu')
  (root / 'lib64').mkdir(parents=True)
  (root / 'lib/x86_64-linux-gnu').mkdir(parents=True)
  shutil.copy(loader, root / 'lib64')
  for name in _GLIBC:
    for file in libraries.glob(f'{name}.so.[0-9]*'):
      shutil.copy(file, root / 'lib/x86_64-linux-gnu')
  for folder in ('dev', 'dev/shm', 'proc', 'tmp'):
    (root / folder).mkdir()
  (root / 'dev/null').touch()
  (root / 'dev/urandom').touch()


def _enter(root: pathlib.Path) -> None:
  """Makes `root` the whole file system of this process."""
  libc = ctypes.CDLL(None, use_errno=True)
  user, group = os.getuid(), os.getgid()
  if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
    raise OSError(ctypes.get_errno(), 'unshare')
  pathlib.Path('/proc/self/setgroups').write_text('deny')
  pathlib.Path('/proc/self/uid_map').write_text(f'0 {user} 1')
  pathlib.Path('/proc/self/gid_map').write_text(f'0 {group} 1')
  for name in ('dev/null', 'dev/urandom', 'proc'):
    source, target = f'/{name}'.encode(), str(root / name).encode()
    flags = _MS_BIND | (0x4000 if name == 'proc' else 0)
    if libc.mount(source, target, None, flags, None):
      raise OSError(ctypes.get_errno(), f'mount {name}')
  os.chroot(root)
  os.chdir('/')


def _run(root: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    args,
    # Nothing but that the few steps are compiled fast.
    env={'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'},
    preexec_fn=lambda: _enter(root),
    capture_output=True,
    text=True,
    check=False,
  )


def _unpacked(root: pathlib.Path) -> list[pathlib.Path]:
  return [p for p in (root / 'tmp').glob('pax-par-*/*') if p.is_dir()]


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> pathlib.Path:
  probe = ['unshare', '--map-root-user', '--mount', 'true']
  if subprocess.run(probe, capture_output=True, check=False).returncode:
    pytest.skip('this machine permits no user namespaces')
  folder = tmp_path_factory.mktemp('machine')
  _glibc_only(folder)
  try:
    os.link(_PAR.resolve(), folder / 'tiny.par')
  except OSError:
    shutil.copy(_PAR, folder / 'tiny.par')
  return folder


def test_there_is_no_python_in_the_root(root):
  names = {p.name for p in root.iterdir()}
  assert names == {'dev', 'lib', 'lib64', 'proc', 'tiny.par', 'tmp'}
  assert not list((root / 'lib').rglob('*python*'))


def test_it_trains(root):
  done = _run(root, '/tiny.par', '--job_log_dir=/tmp/job', *_SCALE_DOWN)
  assert done.returncode == 0, done.stdout + done.stderr
  assert (root / 'tmp/job/metrics.jsonl').exists()
  # The experiment's name is inside; the second start unpacks nothing.
  (folder,) = _unpacked(root)
  when = folder.stat().st_ctime_ns
  again = _run(root, '/tiny.par', '--help')
  assert again.returncode == 0
  assert _unpacked(root) == [folder]
  assert folder.stat().st_ctime_ns == when


def test_children_find_the_libraries_without_environment_variables(root):
  """As `multiprocessing` starts them; the root has no libstdc++."""
  (folder,) = _unpacked(root)
  python = f'/{folder.relative_to(root)}/bin/python3'
  code = 'import jaxlib.xla_client, numpy, ssl, sqlite3, os; print(*os.environ)'
  done = _run(root, python, '-I', '-c', code)
  assert done.returncode == 0, done.stderr
  assert 'LD_LIBRARY_PATH' not in done.stdout


def test_its_size():
  assert _PAR.stat().st_size <= 200e6


def test_a_damaged_file_says_so(root):
  with open(root / 'bad.par', 'wb') as f:
    f.write((root / 'tiny.par').read_bytes()[:-1000])
  (root / 'bad.par').chmod(0o755)
  done = _run(root, '/bad.par')
  (root / 'bad.par').unlink()
  assert done.returncode == 126
  assert 'damaged' in done.stderr


def test_a_signal_while_it_unpacks(tmp_path):
  process = subprocess.Popen(
    [_PAR.resolve(), '--help'],
    env={'PAX_PAR_DIR': str(tmp_path)},
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 60
  while not [p for p in tmp_path.iterdir() if p.is_dir()]:
    assert time.monotonic() < deadline
    time.sleep(0.001)
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 75, err
  message = 'pax: SIGTERM: stopped before the first step; nothing was lost\n'
  assert err == message
  assert not [p for p in tmp_path.iterdir() if p.is_dir()]
