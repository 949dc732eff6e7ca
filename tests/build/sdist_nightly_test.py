# SPDX-License-Identifier: Apache-2.0
"""The source distribution builds a wheel with kernels, or says why not."""

# bazel: tags=nightly
# bazel: deps=@pypi//jaxlib,@pypi//nanobind,@pypi//pybind11
# bazel: deps=//pax:main_lib
# bazel: size=large
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.build import setuptools_builds
from tools.release import archives


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> pathlib.Path:
  """The unpacked source distribution."""
  folder = tmp_path_factory.mktemp('sdist')
  (folder / 'tree').mkdir()
  setuptools_builds.copy_sources(folder / 'tree')
  done = setuptools_builds.build('sdist', folder / 'tree', folder)
  assert done.returncode == 0, done.stderr
  (archive,) = folder.glob('pax_jax-*.tar.gz')
  archives.unpack(archive, folder / 'unpacked')
  (source,) = (folder / 'unpacked').iterdir()
  return source


def test_a_wheel_of_it_has_kernels(source, tmp_path):
  done = setuptools_builds.build('wheel', source, tmp_path)
  assert done.returncode == 0, done.stderr
  (wheel,) = tmp_path.glob('pax_jax-*-linux_x86_64.whl')
  site = tmp_path / 'site'
  with zipfile.ZipFile(wheel) as z:
    z.extractall(site)
  code = (
    'from praxis.kernels import _native, native; print(native.cpu_isa());'
    'from pax.inputs import _host; print(_native.__file__, _host.__file__)'
  )
  path = {'PYTHONPATH': os.pathsep.join([str(site), *sys.path])}
  isa, files = subprocess.check_output(
    [sys.executable, '-c', code], cwd=site, env=os.environ | path, text=True
  ).splitlines()
  assert isa != 'None'
  assert files.count(str(site)) == 2


def test_a_missing_compiler_is_an_error(source, tmp_path):
  # An extension that is built already needs no compiler.
  shutil.rmtree(source / 'build', ignore_errors=True)
  done = setuptools_builds.build(
    'wheel', source, tmp_path, CC='/no/compiler', CXX='/no/compiler'
  )
  assert done.returncode != 0
  assert 'PAX_BUILD_EXTENSIONS=0 builds a wheel without' in done.stderr
