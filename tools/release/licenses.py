# SPDX-License-Identifier: Apache-2.0
"""The licence of each distribution, as an SPDX expression."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import license_expression

from tools.release.programs import ReleaseError
from tools.release.resolution import Package

# Metadata written before SPDX expressions (PEP 639), in lower case.
_TEXTS = {
  '3-clause bsd license': 'BSD-3-Clause',
  'apache 2.0': 'Apache-2.0',
  'apache license 2.0': 'Apache-2.0',
  'apache license version 2.0': 'Apache-2.0',
  'bsd 3-clause license': 'BSD-3-Clause',
  'google cloud platform terms of service': 'LicenseRef-Google-Cloud-Terms',
  'licenseref-nvidia-proprietary': 'LicenseRef-NVIDIA-Proprietary',
  'mit license': 'MIT',
}
# Classifiers that name one licence: `BSD License` may be any of three.
_CLASSIFIERS = {
  f'License :: OSI Approved :: {name}': expression
  for name, expression in {
    'Apache Software License': 'Apache-2.0',
    'MIT License': 'MIT',
    'Mozilla Public License 2.0 (MPL 2.0)': 'MPL-2.0',
    'Python Software Foundation License': 'PSF-2.0',
  }.items()
}
# By a person who read the licence file, where the metadata leaves out a part of
# it or names no licence.
_READ = {
  'cycler': 'BSD-3-Clause',
  'kiwisolver': 'BSD-3-Clause',
  # Files of the standard library, and of dataclasses.
  'libcst': 'MIT AND PSF-2.0 AND Apache-2.0',
  'libstdc++': 'GPL-3.0-or-later WITH GCC-exception-3.1',
  'nanobind': 'BSD-3-Clause',
  'python-dateutil': '(Apache-2.0 AND BSD-3-Clause) OR BSD-3-Clause',
  'robin-map': 'MIT',
  # With OpenBLAS, LAPACK and libgfortran.
  'scipy': (
    'BSD-3-Clause AND BSD-3-Clause-Open-MPI AND'
    ' GPL-3.0-or-later WITH GCC-exception-3.1'
  ),
}
_SPDX = license_expression.get_spdx_licensing()


@dataclasses.dataclass(frozen=True, kw_only=True)
class License:
  """The licence of a distribution."""

  # In the form of SPDX: `Apache-2.0 AND MIT`.
  expression: str
  # The field of its metadata, or `licence file`.
  source: str


def of(package: Package) -> License | None:
  """Returns the licence of a distribution; None if it is not known."""
  metadata = package.metadata
  text = metadata.get('license_expression', '')
  if text := _valid(text) or _TEXTS.get(text.lower()):
    return License(expression=text, source='License-Expression')
  if text := _READ.get(package.name):
    return License(expression=text, source='licence file')
  # A whole licence begins with its name, centred over two lines.
  words = ' '.join(metadata.get('license', '').split())
  if text := _valid(words) or _TEXTS.get(words.lower()) or _by_beginning(words):
    return License(expression=text, source='License')
  stated = [
    c for c in metadata.get('classifier', ()) if c.startswith('License ::')
  ]
  if len(stated) == 1 and (text := _CLASSIFIERS.get(stated[0])):
    return License(expression=text, source='Classifier')
  return None


def _valid(text: str) -> str:
  """Returns an expression of SPDX in its usual form; '' for other texts."""
  if not text:
    return ''
  try:
    return str(_SPDX.parse(text, validate=True, strict=True))
  except license_expression.ExpressionError:
    return ''


def _by_beginning(words: str) -> str:
  """Returns the expression of a licence whose text begins with its name."""
  is_long = len(words) > 100
  found = (v for k, v in _TEXTS.items() if words.lower().startswith(k))
  return next(found, '') if is_long else ''


def report(packages: Iterable[Package]) -> str:
  """Returns a table of packages and their licences, in Markdown.

  Raises:
    ReleaseError: the licence of a package is not known.
  """
  rows, unknown = set(), set()
  for package in packages:
    if found := of(package):
      rows.add(
        f'| {package.name} | {package.version} | {found.expression}'
        f' | {found.source} |\n'
      )
    else:
      unknown.add(f'{package.name} {package.version}')
  if unknown:
    raise ReleaseError(
      f'the licence of {", ".join(sorted(unknown))} is not known; read its'
      ' licence file and add it to tools/release/licenses.py'
    )
  return (
    '# Licences of the dependencies\n\n'
    '| package | version | licence | according to |\n|---|---|---|---|\n'
    + ''.join(sorted(rows))
  )
