# SPDX-License-Identifier: Apache-2.0
"""What the extensions of a wheel contain that is in no Python package."""

from __future__ import annotations

import pathlib
import re
import zipfile

from tools.release.programs import ReleaseError, run
from tools.release.resolution import Package

# The compiler writes it into the section .comment of each object, those of
# libstdc++.a among them.
_COMPILER = re.compile(rb'GCC: \([^)]*\) (\d+\.\d+\.\d+)\0')
_ROBIN_MAP = 'ext/robin_map/include/tsl/robin_growth_policy.h'
_VERSION_PART = re.compile(
  r'#define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)'
)


def parts(python: pathlib.Path, wheel: pathlib.Path) -> list[Package]:
  """Returns robin-map and libstdc++ at the versions in the extensions.

  Args:
    python: the interpreter whose nanobind built the wheel; it has robin-map.
    wheel: the wheel.

  Raises:
    ReleaseError: a version is in none of the files.
  """
  code = 'import nanobind; print(nanobind.__path__[0])'
  nanobind = pathlib.Path(run([python, '-c', code]).strip())
  header = (nanobind / _ROBIN_MAP).read_text(encoding='utf-8')
  robin_map = '.'.join(_VERSION_PART.findall(header))
  if robin_map.count('.') != 2:
    raise ReleaseError(f'{nanobind / _ROBIN_MAP} has no version; read it')
  return [
    _part('robin-map', robin_map, 'github/tessil'),
    *(_part('libstdc++', v, 'generic') for v in sorted(compilers(wheel))),
  ]


def compilers(wheel: pathlib.Path) -> set[str]:
  """Returns the versions of GCC that compiled parts of the extensions.

  Raises:
    ReleaseError: there is none.
  """
  with zipfile.ZipFile(wheel) as z:
    extensions = [z.read(n) for n in z.namelist() if n.endswith('.so')]
  found = {v.decode() for data in extensions for v in _COMPILER.findall(data)}
  if not found:
    raise ReleaseError(
      f'{wheel.name} does not tell its compiler: the version of libstdc++ is'
      ' not known; build it with GCC'
    )
  return found


def _part(name: str, version: str, origin: str) -> Package:
  return Package(
    name=name,
    version=version,
    origin=origin,
    sha256='',
    metadata={},
    requires=frozenset(),
  )
