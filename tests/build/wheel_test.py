# SPDX-License-Identifier: Apache-2.0
"""The wheels install into an empty environment and train there."""

# bazel: data=//:wheels
# bazel: deps=//third_party/pip:runtime,@pypi//pip
# bazel: size=large
from __future__ import annotations

import email
import email.message
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import venv
import zipfile

import pytest

_FOLDER = pathlib.Path('tools/wheel')
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


def _wheel(name: str) -> pathlib.Path:
  (path,) = _FOLDER.glob(f'{name}-*.whl')
  return path.absolute()


def _metadata(name: str) -> email.message.Message:
  with zipfile.ZipFile(_wheel(name)) as z:
    (path,) = (n for n in z.namelist() if n.endswith('/METADATA'))
    return email.message_from_bytes(z.read(path))


@pytest.fixture(scope='module')
def environment(tmp_path_factory) -> pathlib.Path:
  """A virtual environment of its own, with the locked wheels and ours."""
  folder = tmp_path_factory.mktemp('environment') / 'venv'
  venv.create(folder, with_pip=False, symlinks=True)
  (site,) = folder.glob('lib/python3*/site-packages')
  sites = [p for p in sys.path if p.endswith('/site')]
  (site / 'locked.pth').write_text('\n'.join(sites) + '\n')
  install = ['install', '--no-index', '--no-cache-dir', '--quiet']
  _pip(folder, *install, str(_wheel('praxis')), str(_wheel('pax')))
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
    [environment / 'bin/pax', *_FLAGS],
    cwd=tmp_path,
    env={'HOME': str(tmp_path), 'JAX_PLATFORMS': 'cpu', **_COMPILE_FAST},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert (tmp_path / f'job/checkpoints/checkpoint_{_STEPS:08d}').exists()


def test_paxml_is_installed_with_pax(environment):
  code = 'import paxml.learners as x, pax.learners as y; assert x is y'
  subprocess.run([environment / 'bin/python', '-c', code], check=True, cwd='/')


@pytest.mark.parametrize('name', ['pax', 'praxis'])
def test_bounds_are_what_was_tested(name):
  """A lower bound is a version that a test ran with, not a guess."""
  needs = _metadata(name).get_all('Requires-Dist')
  assert any(n.startswith('jax>=') for n in needs)
  for need in needs:
    distribution, _, bound = need.partition('>=')
    if bound:
      locked = importlib.metadata.version(distribution)
      assert locked.startswith(bound), f'{need}, but {locked} is locked'


def test_extensions_make_wheels_platform_specific():
  extensions = {
    'praxis': 'praxis/kernels/_native.so',
    'pax': 'pax/inputs/_host.so',
  }
  for name, extension in extensions.items():
    tag = _wheel(name).stem.split('-', 2)[2]
    assert tag.endswith('linux_x86_64')
    with zipfile.ZipFile(_wheel(name)) as z:
      assert extension in z.namelist()


def test_files_have_no_date_and_no_machine_in_them():
  for name in ('pax', 'praxis'):
    with zipfile.ZipFile(_wheel(name)) as z:
      assert {i.date_time for i in z.infolist()} == {(1980, 1, 1, 0, 0, 0)}
      for info in z.infolist():
        assert os.environ['TEST_SRCDIR'].encode() not in z.read(info)
        assert b'/execroot/' not in z.read(info)
