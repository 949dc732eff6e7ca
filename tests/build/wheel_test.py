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
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile

import pytest

from tests.build import installed_pax, setuptools_builds

_FOLDER = pathlib.Path('tools/wheel')
_EXTENSIONS = {'praxis/kernels/_native', 'pax/inputs/_host'}
_SITE = 'pax/tools/site.zip'
# The documentation is a few megabytes.
_MAX_BYTES = 8e6
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
  installed_pax.train(environment, tmp_path)


def test_paxml_and_extensions_are_installed(environment):
  installed_pax.import_all(environment)


def test_the_documentation_is_installed(environment, tmp_path):
  with subprocess.Popen(
    [environment / 'bin/pax', 'docs'],
    cwd=tmp_path,
    env={'HOME': str(tmp_path)},
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      address = process.stdout.readline().split()[0]
      with urllib.request.urlopen(f'{address}quickstart.html') as response:
        assert '<h1>Quickstart' in response.read().decode()
    finally:
      process.send_signal(signal.SIGINT)
  assert process.returncode == 128 + signal.SIGINT


def test_the_wheel_of_setuptools_is_equal(tmp_path):
  """But for the extensions and the site, which take a minute to build."""
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
  assert _names(_wheel()) == _names(pure) | _EXTENSIONS | {_SITE}
  assert _wheel().stat().st_size < _MAX_BYTES
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
