# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ extensions of the wheel; all else: pyproject.toml.

PAX_BUILD_EXTENSIONS=0 builds a wheel without them, for any machine: their
references in Python run instead.
"""

from __future__ import annotations

import os
import pathlib
import sys

import setuptools
from setuptools import errors
from setuptools.command import build_ext

_SWITCH = 'PAX_BUILD_EXTENSIONS'
_COMPILE = ['-std=c++17', '-O3', '-fvisibility=hidden']
_LINK = []
if sys.platform == 'linux':
  # The machine's libstdc++ may be older than the compiler's.
  _LINK = ['-static-libstdc++', '-Wl,--exclude-libs,libstdc++.a', '-Wl,-s']
_GLIBC = 'csrc/glibc_2_28.cc'
_GLIBC_HEADER = 'csrc/glibc_jump.h'


def _files(pattern: str) -> list[str]:
  """Returns the C++ files that match; those of CUDA are built by Bazel only."""
  paths = pathlib.Path('csrc').glob(pattern)
  return sorted(str(p) for p in paths if 'cuda' not in p.name)


def kernels() -> setuptools.Extension:
  """Returns what //praxis/kernels:_native.so is to Bazel."""
  import jaxlib
  import nanobind

  nano = pathlib.Path(nanobind.source_dir())
  return setuptools.Extension(
    'praxis.kernels._native',
    [
      'csrc/module.cc',
      'csrc/nanobind.cc',
      _GLIBC,
      *_files('ffi/*.cc'),
      *_files('kernels/*.cc'),
    ],
    depends=[_GLIBC_HEADER, *_files('ffi/*.h'), *_files('kernels/*.h')],
    include_dirs=[
      '.',
      nanobind.include_dir(),
      str(nano),
      str(nano.parent / 'ext/robin_map/include'),
      str(pathlib.Path(jaxlib.__file__).parent / 'include'),
    ],
    extra_compile_args=[
      *_COMPILE,
      '-fno-strict-aliasing',
      '-DNB_COMPACT_ASSERTIONS',
    ],
    extra_link_args=_LINK,
  )


def inputs() -> setuptools.Extension:
  """Returns what //pax/inputs:_host.so is to Bazel."""
  import pybind11

  return setuptools.Extension(
    'pax.inputs._host',
    [_GLIBC, *_files('host/*.cc')],
    depends=[_GLIBC_HEADER, *_files('host/*.h')],
    include_dirs=['.', pybind11.get_include()],
    extra_compile_args=_COMPILE,
    extra_link_args=_LINK,
  )


class BuildExtensions(build_ext.build_ext):
  """Names the packages to install if an extension cannot be built."""

  def build_extension(self, ext: setuptools.Extension) -> None:
    try:
      super().build_extension(ext)
    except (errors.CompileError, errors.LinkError) as e:
      raise SystemExit(
        f'setup.py: cannot build {ext.name}: {e}\nIt needs a C++17 compiler and'
        ' the headers of Python (Debian: g++ python3-dev).'
        f' {_SWITCH}=0 builds a wheel without extensions; references in Python,'
        ' which are slower, then replace them.'
      ) from e


if os.environ.get(_SWITCH) == '0':
  setuptools.setup()
else:
  setuptools.setup(
    ext_modules=[kernels(), inputs()], cmdclass={'build_ext': BuildExtensions}
  )
