# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ code for `pip install -e .`; all else: pyproject.toml.

Without a C++ compiler the install goes on, and the references in Python run.
"""

from __future__ import annotations

import pathlib

import jaxlib
import nanobind
import pybind11
import setuptools

_OPTIONS = ['-std=c++17', '-O3', '-fvisibility=hidden']


def kernels() -> setuptools.Extension:
  """What //praxis/kernels:_native.so is to Bazel."""
  nano = pathlib.Path(nanobind.source_dir()).parent
  xla = pathlib.Path(jaxlib.__file__).parent / 'include'
  folders = [pathlib.Path('csrc/ffi'), pathlib.Path('csrc/kernels')]
  sources = [str(p) for folder in folders for p in sorted(folder.glob('*.cc'))]
  return setuptools.Extension(
    'praxis.kernels._native',
    [
      'csrc/module.cc',
      *(s for s in sources if 'cuda' not in s),
      str(nano / 'src/nb_combined.cpp'),
    ],
    include_dirs=[
      '.',
      nanobind.include_dir(),
      str(nano / 'ext/robin_map/include'),
      str(xla),
    ],
    extra_compile_args=[
      *_OPTIONS,
      '-fno-strict-aliasing',
      '-DNB_COMPACT_ASSERTIONS',
    ],
    optional=True,
  )


def inputs() -> setuptools.Extension:
  """What //pax/inputs:_host.so is to Bazel."""
  return setuptools.Extension(
    'pax.inputs._host',
    [str(p) for p in sorted(pathlib.Path('csrc/host').glob('*.cc'))],
    include_dirs=['.', pybind11.get_include()],
    extra_compile_args=_OPTIONS,
    optional=True,
  )


setuptools.setup(ext_modules=[kernels(), inputs()])
