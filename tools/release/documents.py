# SPDX-License-Identifier: Apache-2.0
"""The files of a release other than its distributions."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import pathlib
from collections.abc import Sequence

from tools.release import index, licenses, locks, resolution, sbom

REQUIREMENTS = 'requirements*.txt'
SUMS = 'SHA256SUMS'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation:
  """What pip installs with a wheel."""

  # Of the interpreter, such as cp313.
  tag: str
  # A key of resolution.LOCKS.
  accelerator: str
  # The wheel and what it requires.
  packages: Sequence[resolution.Package]


def write_requirements(
  root: pathlib.Path, out: pathlib.Path, installations: Sequence[Installation]
) -> None:
  """Writes requirements_ACCELERATOR.txt: versions and hashes of each package.

  Args:
    root: the root of the repository.
    out: the folder of the release.
    installations: of all interpreters; the files have markers for each.
  """
  for accelerator, files in resolution.LOCKS.items():
    names = {
      package.name
      for installation in installations
      if installation.accelerator == accelerator
      for package in installation.packages
    }
    if names:
      text = locks.text(locks.of(locks.read(root, *files), names))
      path = out / f'requirements_{accelerator}.txt'
      path.write_text(text, encoding='utf-8')


def write_bills(
  out: pathlib.Path,
  installations: Sequence[Installation],
  built_in: Sequence[resolution.Package],
  time: datetime.datetime,
) -> None:
  """Writes the licences of all packages, and an SBOM per installation.

  Args:
    out: the folder of the release.
    installations: of all interpreters and accelerators.
    built_in: what the extensions contain.
    time: of the commit.
  """
  packages = [resolution.split(i.packages)[1] for i in installations]
  report = licenses.report(itertools.chain(built_in, *packages))
  (out / 'LICENSES.md').write_text(report, encoding='utf-8')
  for installation in installations:
    path = out / f'sbom_{installation.tag}_{installation.accelerator}.cdx.json'
    text = sbom.text(installation.packages, built_in, time)
    path.write_text(f'{text}\n', encoding='utf-8')


def write_sums(out: pathlib.Path) -> None:
  """Writes the SHA-256 of each file, for `sha256sum --check SHA256SUMS`."""
  paths = sorted(path for path in out.rglob('*') if path.is_file())
  lines = [f'{index.sha256(path)}  {path.relative_to(out)}\n' for path in paths]
  (out / SUMS).write_text(''.join(lines), encoding='utf-8')
