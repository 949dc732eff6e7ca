# SPDX-License-Identifier: Apache-2.0
"""What pip installs at the versions of the locks."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release import locks
from tools.release.programs import ReleaseError, run

DISTRIBUTION = 'pax-jax'
# {accelerator: locks with what the wheel needs for it}; `cpu` needs no extra.
LOCKS = {
  'cpu': ('requirements_lock.txt',),
  'cuda': ('requirements_lock.txt', 'requirements_cuda_lock.txt'),
  'tpu': ('requirements_lock.txt', 'requirements_tpu_lock.txt'),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
  """A distribution that pip installs, or a part of one."""

  # Canonical name.
  name: str
  version: str
  # Type of its package URL, with the owner if it has one: github/tessil.
  origin: str = 'pypi'
  # Of its file; empty for a part of another one.
  sha256: str
  # Its core metadata in the form of PEP 566: {'license_expression': ...}.
  metadata: Mapping[str, Any]
  # Canonical names of the distributions that it requires.
  requires: frozenset[str]


def resolve(
  python: pathlib.Path,
  requirements: Sequence[str],
  entries: Sequence[locks.Entry],
) -> list[Package]:
  """Returns what pip would install, sorted by name; it installs nothing.

  Args:
    python: an interpreter with pip.
    requirements: such as `jax` or `pax-jax[tpu] @ file:///PATH`.
    entries: of the locks, which have the versions.

  Raises:
    ReleaseError: a package is not in the locks, or its file is another one.
  """
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as pins:
    pins.write(locks.constraints(entries))
    pins.flush()
    options = ['--quiet', '--dry-run', '--ignore-installed', '--report=-']
    report = run(
      [
        *(python, '-m', 'pip', '--disable-pip-version-check', 'install'),
        *(*options, '--only-binary=:all:', f'--constraint={pins.name}'),
        *requirements,
      ]
    )
  packages = _packages(json.loads(report))
  _check(packages, entries)
  return packages


def requirement(wheel: pathlib.Path, accelerator: str) -> str:
  """Returns the requirement of a wheel for a key of LOCKS."""
  extra = '' if accelerator == 'cpu' else f'[{accelerator}]'
  return f'{DISTRIBUTION}{extra} @ {wheel.as_uri()}'


def _packages(report: Mapping[str, Any]) -> list[Package]:
  """Returns the packages of an installation report of pip, sorted."""
  items = report['install']
  names = {canonicalize_name(item['metadata']['name']) for item in items}
  packages = []
  for item in items:
    metadata = item['metadata']
    extras = item.get('requested_extras', ())
    contexts = [{**report['environment'], 'extra': e} for e in ('', *extras)]
    requirements = map(Requirement, metadata.get('requires_dist', ()))
    requires = {
      canonicalize_name(r.name)
      for r in requirements
      if r.marker is None or any(map(r.marker.evaluate, contexts))
    }
    packages.append(
      Package(
        name=canonicalize_name(metadata['name']),
        version=metadata['version'],
        sha256=item['download_info']['archive_info']['hashes']['sha256'],
        metadata=metadata,
        requires=frozenset(requires & names),
      )
    )
  return sorted(packages, key=lambda package: package.name)


def _check(packages: Sequence[Package], entries: Sequence[locks.Entry]) -> None:
  hashes: dict[str, set[str]] = {}
  for entry in entries:
    hashes.setdefault(entry.name, set()).update(entry.hashes)
  for package in packages:
    if package.name == DISTRIBUTION:
      continue
    if package.name not in hashes:
      raise ReleaseError(
        f'{package.name} is in no lock; add it to third_party/pip/*.in and run'
        ' tools/lock.sh'
      )
    if package.sha256 not in hashes[package.name]:
      raise ReleaseError(
        f'{package.name} {package.version}: the file with SHA-256'
        f' {package.sha256} is not in the lock; run tools/lock.sh'
      )


def split(packages: Iterable[Package]) -> tuple[Package, list[Package]]:
  """Returns the wheel of this distribution, and the other packages."""
  by_name = {package.name: package for package in packages}
  return by_name.pop(DISTRIBUTION), list(by_name.values())
