# SPDX-License-Identifier: Apache-2.0
"""pyproject.toml: its dependencies are the imports; versions are equal."""

# bazel: data=//:all_files
from __future__ import annotations

import pathlib
import re
import sys
import tomllib

import pax
from tools import bare_root, gen_build, pyimports
from tools.release import changelog

_PACKAGES = ('pax', 'paxml', 'praxis')


def _project() -> dict:
  return tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']


def _distributions(requirements: list[str]) -> set[str]:
  names = {re.split(r'[^\w.-]', text, maxsplit=1)[0] for text in requirements}
  return {re.sub(r'[-_.]+', '_', name).lower() for name in names}


def _imports() -> set[str]:
  """Returns the distributions that our modules import."""
  root = pathlib.Path()
  modules = [
    pyimports.read(root, pathlib.PurePosixPath(path))
    for package in _PACKAGES
    for path in root.glob(f'{package}/**/*.py')
  ]
  names = {name.split('.')[0] for m in modules for name in m.imports}
  names -= {*_PACKAGES, *sys.stdlib_module_names, *gen_build.NEWER}
  names -= gen_build.OPTIONAL
  return {gen_build.DISTRIBUTIONS.get(n, n.lower()) for n in names}


def test_dependencies_are_the_imports():
  assert _distributions(_project()['dependencies']) == _imports()


def test_lower_bounds_are_versions_that_were_run():
  lock = pathlib.Path('third_party/pip/requirements_lowest_lock.txt')
  pins = re.findall(r'(?m)^([\w.-]+)==([^\s;]+)', lock.read_text())
  # The first of each: that of the oldest Python.
  versions = dict(reversed(pins))
  for requirement in _project()['dependencies']:
    name, bound = requirement.partition(';')[0].split('>=')
    version = versions[re.sub(r'[-_.]+', '-', name).lower()]
    assert f'{version}.'.startswith(f'{bound}.'), requirement


def test_the_readme_names_the_packages_of_a_bare_debian():
  words = pathlib.Path('README.md').read_text().split()
  command = ['apt-get', 'install', *bare_root.PACKAGES]
  assert f'`{" ".join(command)}`' in ' '.join(words)


def test_contributing_names_what_a_bare_ubuntu_needs_besides(monkeypatch):
  monkeypatch.delenv('BAZELW_MIRROR', raising=False)
  monkeypatch.setattr(bare_root, 'mirror', lambda suite: suite)
  words = pathlib.Path('CONTRIBUTING.md').read_text().split()
  assert bare_root.variables('trixie') == {}
  (name,) = bare_root.variables('noble')
  assert f'`{name}`' in words


def test_the_wheel_of_bazel_and_the_changelog_have_the_version():
  text = pathlib.Path('tools/wheel/wheel.bzl').read_text()
  assert f'\nVERSION = "{pax.__version__}"\n' in text
  section = changelog.newest(pathlib.Path('CHANGELOG.md').read_text())
  assert section.version == pax.__version__
