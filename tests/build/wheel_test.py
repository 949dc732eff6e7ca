# SPDX-License-Identifier: Apache-2.0
"""The wheel: equal to that of setuptools, installable, and it trains."""

# bazel: data=//:wheels
# bazel: deps=//third_party/pip:runtime,@pypi//auditwheel,@pypi//pip
# bazel: size=large
from __future__ import annotations

import email
import email.message
import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest

from tests.build import setuptools_builds

_FOLDER = pathlib.Path('tools/wheel')
_EXTENSIONS = {'praxis/kernels/_native', 'pax/inputs/_host'}
_STEPS = 5
_COMPILE_FAST = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}
_FLAGS = (
  '--exp=tasks.lm.params.quickstart.TinyLm',
  '--job_log_dir=job',
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=16',
  '--set=HIDDEN_DIMS=32',
  '--set=MAX_SEQ_LEN=32',
  '--set=NUM_PIECES=None',
  '--set=TRAIN_FILES=text',
  '--set=HELD_OUT_PERCENT=20',
  f'--set=task.train.num_train_steps={_STEPS}',
)

pytestmark = pytest.mark.skipif(
  not list(_FOLDER.glob('*.whl')), reason='Bazel builds what this installs'
)


def _wheel() -> pathlib.Path:
  (path,) = _FOLDER.glob('pax_jax-*.whl')
  return path.absolute()


def _metadata(wheel: pathlib.Path) -> email.message.Message:
  with zipfile.ZipFile(wheel) as z:
    (path,) = (n for n in z.namelist() if n.endswith('/METADATA'))
    return email.message_from_bytes(z.read(path))


def _names(wheel: pathlib.Path) -> set[str]:
  """Returns the names of the files, extensions without that of Python."""
  with zipfile.ZipFile(wheel) as z:
    return {n.split('.')[0] if n.endswith('.so') else n for n in z.namelist()}


@pytest.fixture(scope='module')
def environment(tmp_path_factory) -> pathlib.Path:
  """A virtual environment with the locked wheels and ours."""
  folder = tmp_path_factory.mktemp('environment') / 'venv'
  venv.create(folder, with_pip=False, symlinks=True)
  (site,) = folder.glob('lib/python3*/site-packages')
  sites = [p for p in sys.path if p.endswith('/site')]
  (site / 'locked.pth').write_text('\n'.join(sites) + '\n')
  install = ['install', '--no-index', '--no-cache-dir', '--quiet']
  _pip(folder, *install, '--find-links', str(_wheel().parent), 'pax-jax')
  return folder


def _pip(folder: pathlib.Path, *args: str) -> None:
  import pip

  program = str(pathlib.Path(pip.__file__).parent)
  command = [sys.executable, program, '--python', str(folder / 'bin/python')]
  subprocess.run([*command, *args], check=True)


def test_dependencies_hold(environment):
  """pip itself found every bound satisfied by the lock's versions."""
  _pip(environment, 'check')


def test_five_steps(environment, tmp_path):
  (tmp_path / 'text').mkdir()
  for i in range(30):
    (tmp_path / f'text/{i}').write_text(f'This is text {i}.\n' * 30)
  done = subprocess.run(
    [environment / 'bin/paxrun', *_FLAGS],
    cwd=tmp_path,
    env={'HOME': str(tmp_path), 'JAX_PLATFORMS': 'cpu', **_COMPILE_FAST},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert (tmp_path / f'job/checkpoints/checkpoint_{_STEPS:08d}').exists()


def test_paxml_and_extensions_are_installed(environment):
  code = (
    'import paxml.learners as x, pax.learners as y; assert x is y;'
    'from praxis.kernels import _native; assert _native.cpu_isa();'
    'from pax.inputs import _host'
  )
  subprocess.run([environment / 'bin/python', '-c', code], check=True, cwd='/')


def test_the_wheel_of_setuptools_is_equal(tmp_path):
  """But for the extensions, which take a minute to build."""
  source = tmp_path / 'source'
  source.mkdir()
  setuptools_builds.copy_sources(source)
  done = setuptools_builds.build(
    'wheel', source, tmp_path, PAX_BUILD_EXTENSIONS='0'
  )
  assert done.returncode == 0, done.stderr
  (pure,) = tmp_path.glob('*.whl')
  assert pure.name.endswith('-py3-none-any.whl')
  assert pure.name.split('-')[:2] == _wheel().name.split('-')[:2]
  assert _names(_wheel()) == _names(pure) | _EXTENSIONS
  ours, theirs = _metadata(_wheel()), _metadata(pure)
  assert ours.items() == theirs.items()
  assert ours.get_payload() == theirs.get_payload()


def test_the_wheel_runs_with_glibc_2_28():
  tag = f'cp{sys.version_info.major}{sys.version_info.minor}'
  assert _wheel().stem.split('-', 2)[2] == f'{tag}-{tag}-linux_x86_64'
  done = subprocess.run(
    [sys.executable, '-m', 'auditwheel', 'show', str(_wheel())],
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=True,
  )
  glibc = re.search(r'"manylinux_(\d+)_(\d+)_x86_64"', done.stdout)
  assert (int(glibc[1]), int(glibc[2])) <= (2, 28), done.stdout


def test_files_have_no_date_and_no_machine_in_them():
  with zipfile.ZipFile(_wheel()) as z:
    assert {i.date_time for i in z.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for info in z.infolist():
      assert os.environ['TEST_SRCDIR'].encode() not in z.read(info)
      assert b'/execroot/' not in z.read(info)
