# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ kernels for `pip install -e .`; all else: pyproject.toml.

Without a C++ compiler the install goes on, and the kernels' references run.
"""

from __future__ import annotations

import pathlib

import jaxlib
import nanobind
import setuptools


def kernels() -> setuptools.Extension:
  """What //praxis/kernels:_native.so is to Bazel."""
  nano = pathlib.Path(nanobind.source_dir()).parent
  xla = pathlib.Path(jaxlib.__file__).parent / 'include'
  sources = [str(p) for p in sorted(pathlib.Path('csrc').rglob('*.cc'))]
  return setuptools.Extension(
    'praxis.kernels._native',
    [
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
      '-std=c++17',
      '-O3',
      '-fvisibility=hidden',
      '-fno-strict-aliasing',
      '-DNB_COMPACT_ASSERTIONS',
    ],
    optional=True,
  )


setuptools.setup(ext_modules=[kernels()])
