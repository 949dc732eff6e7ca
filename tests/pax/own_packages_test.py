# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""`import pax` with the distributions praxis and paxml of Google."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

import pax

_PACKAGES = ('pax', 'praxis', 'paxml')


def _package(folder: pathlib.Path, name: str) -> None:
  (folder / name).mkdir(parents=True)
  (folder / name / '__init__.py').touch()


@pytest.fixture
def site(tmp_path) -> pathlib.Path:
  """A folder with our `pax` and empty `praxis` and `paxml`."""
  site = tmp_path / 'site'
  for name in _PACKAGES:
    _package(site, name)
  shutil.copy(pax.__file__, site / 'pax')
  return site


def _import(
  *path: pathlib.Path, module: str = 'pax'
) -> subprocess.CompletedProcess[str]:
  code = f'import sys; sys.path[:0] = {[*map(str, path)]}; import {module}'
  command = [sys.executable, '-I', '-S', '-c', code]
  return subprocess.run(command, capture_output=True, text=True, check=False)


def test_own_packages(site, tmp_path):
  _package(tmp_path / 'later', 'praxis')
  done = _import(site, tmp_path / 'later')
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('is_first', [True, False])
def test_modules_of_a_project(site, tmp_path, is_first):
  for folder, name in ((site, 'theirs'), (tmp_path / 'mine', 'mine')):
    (folder / 'pax/tasks/lm/params').mkdir(parents=True)
    (folder / 'pax/tasks/lm/params' / f'{name}.py').touch()
  path = [site, tmp_path / 'mine']
  for name in ('theirs', 'mine'):
    module = f'pax.tasks.lm.params.{name}'
    done = _import(*(path[::-1] if is_first else path), module=module)
    assert done.returncode == 0, done.stderr
  # Another Pax is not a project.
  (path[1] / 'pax/__init__.py').touch()
  done = _import(*path, module='pax.tasks.lm.params.mine')
  assert "No module named 'pax.tasks.lm.params.mine'" in done.stderr


@pytest.mark.parametrize('name', ['praxis', 'paxml'])
def test_another_distribution_in_the_same_folder(site, name):
  (site / f'{name}-1.4.0.dist-info').mkdir()
  done = _import(site)
  assert f'ImportError: pax-jax contains the package {name}' in done.stderr
  assert f'{name}-1.4.0.dist-info' in done.stderr
  assert 'pip uninstall praxis paxml' in done.stderr


def test_another_distribution_earlier_in_the_path(site, tmp_path):
  _package(tmp_path / 'earlier', 'praxis')
  done = _import(tmp_path / 'earlier', site)
  message = f'but {tmp_path / "earlier" / "praxis"} is of another distribution'
  assert message in done.stderr
