# SPDX-License-Identifier: Apache-2.0
"""A whole dry run; the wheels, installed by name from its index, train.

It builds a wheel for each python3.11 to python3.14 of the PATH, and needs the
package registry of the machine: the dependencies come from there.
"""

# bazel: tags=nightly
# bazel: size=large
from __future__ import annotations

import functools
import http.server
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

import pax
from tests.build import installed_pax, setuptools_builds
from tools.release import release

_MINORS = range(11, 15)


def _pythons() -> list[str]:
  """Returns the interpreters that can make virtual environments."""
  found = []
  for minor in _MINORS:
    path = shutil.which(f'python3.{minor}')
    check = 'import ensurepip, sysconfig, os; os.stat(' + (
      'sysconfig.get_path("include") + "/Python.h")'
    )
    if path and not subprocess.run([path, '-c', check], check=False).returncode:
      found.append(path)
  return found


def _minor(python: str) -> str:
  return python.rpartition('.')[2]


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  """The files of a dry run of a commit of this tree."""
  root = tmp_path_factory.mktemp('root')
  setuptools_builds.copy_sources(root)
  for name in ('docs', 'third_party/pip', 'tools/docs', 'tools/wheel'):
    shutil.copytree(name, root / name)
  for name in ('CHANGELOG.md', 'CONTRIBUTING.md'):
    shutil.copy(name, root)
  git = ['git', '-C', root, '-c', 'user.name=t', '-c', 'user.email=t@t']
  for words in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'first']):
    subprocess.run([*git, *words], check=True)
  pythons = ','.join(_pythons())
  flags = ['--dry_run', f'--root={root}', f'--pythons={pythons}']
  assert release.main([*flags, '--accelerators=cpu']) == 0
  assert not subprocess.check_output([*git, 'tag'])
  return root / 'dist' / pax.__version__


class _Handler(http.server.SimpleHTTPRequestHandler):
  """Serves files, and keeps the requests in `paths` of its server."""

  def log_message(self, *args: object) -> None:
    self.server.paths.append(self.path)


@pytest.fixture
def server(folder) -> Iterator[http.server.ThreadingHTTPServer]:
  handler = functools.partial(_Handler, directory=folder)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    server.paths = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.mark.parametrize('python', _pythons(), ids=_minor)
def test_pip_installs_by_name_what_trains(python, folder, server, tmp_path):
  environment = tmp_path / 'venv'
  # Without the packages of this process.
  variables = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  run = functools.partial(subprocess.run, check=True, env=variables)
  run([python, '-m', 'venv', environment])
  pip = [environment / 'bin/python', '-m', 'pip']
  url = f'http://127.0.0.1:{server.server_port}/simple/'
  run([*pip, 'install', '--quiet', f'--extra-index-url={url}', 'pax-jax'])
  tag = f'cp3{_minor(python)}'
  wheel = f'/pax_jax-{pax.__version__}-{tag}-{tag}-manylinux_2_28_x86_64.whl'
  assert wheel in server.paths
  run([*pip, 'check'])
  installed_pax.import_all(environment)
  (tmp_path / 'run').mkdir()
  installed_pax.train(environment, tmp_path / 'run')


def test_the_files_are_those_of_the_documentation(folder):
  names = {path.name for path in folder.iterdir()}
  tags = [f'cp3{_minor(python)}' for python in _pythons()]
  assert names == {
    'LICENSES.md',
    'SHA256SUMS',
    f'pax_jax-{pax.__version__}.tar.gz',
    'requirements_cpu.txt',
    'simple',
    *(f'sbom_{tag}_cpu.cdx.json' for tag in tags),
    *(
      f'pax_jax-{pax.__version__}-{tag}-{tag}-manylinux_2_28_x86_64.whl'
      for tag in tags
    ),
  }
  check = ['sha256sum', '--check', '--quiet', 'SHA256SUMS']
  subprocess.run(check, cwd=folder, check=True)
  text = (folder / 'requirements_cpu.txt').read_text()
  assert 'jaxlib==' in text and 'pytest==' not in text
