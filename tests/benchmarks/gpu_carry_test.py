# SPDX-License-Identifier: Apache-2.0
"""What a GPU machine without a network needs from here."""

from __future__ import annotations

from benchmarks import gpu_carry
from tools.release.resolution import Package


def _package(name: str, *requires: str) -> Package:
  return Package(
    name=name,
    version='1.0',
    sha256='',
    metadata={},
    requires=frozenset(requires),
  )


def test_what_an_installed_package_requires_is_not_missing():
  packages = [
    _package('array', 'codec'),
    _package('codec', 'array'),
    _package('configuration', 'graph', 'array'),
    _package('graph'),
    _package('model', 'array'),
  ]
  assert gpu_carry.missing(packages, ['model']) == {'configuration', 'graph'}
  assert gpu_carry.missing(packages, ['model', 'configuration']) == set()
