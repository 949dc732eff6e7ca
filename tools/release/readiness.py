# SPDX-License-Identifier: Apache-2.0
"""What has to hold in the repository before a version is released."""

from __future__ import annotations

import pathlib
import re

from tools.release.changelog import Section
from tools.release.programs import run

# {file: what precedes the version in it}; setuptools reads the first, Bazel the
# second.
_VERSIONS = {
  'pax/__init__.py': '__version__ = ',
  'tools/wheel/wheel.bzl': 'VERSION = ',
}


def tag(version: str) -> str:
  """Returns the name of the tag of a version."""
  return f'v{version}'


def faults(root: pathlib.Path, section: Section) -> list[str]:
  """Returns why the commit HEAD cannot be released as a version.

  Args:
    root: the root of the repository.
    section: the version, in the changelog.
  """
  return [
    *_changelog_faults(section),
    *_version_faults(root, section.version),
    *_git_faults(root, section.version),
  ]


def _changelog_faults(section: Section) -> list[str]:
  messages = []
  if not section.is_released:
    messages.append(
      f'CHANGELOG.md: {section.version} has no date; replace its heading by'
      f' "## {section.version} (YYYY-MM-DD)"'
    )
  if not section.notes:
    messages.append(f'CHANGELOG.md: {section.version} has no changes')
  return messages


def _version_faults(root: pathlib.Path, version: str) -> list[str]:
  messages = []
  for name, before in _VERSIONS.items():
    text = (root / name).read_text(encoding='utf-8')
    pattern = rf"^{re.escape(before)}['\"](.*)['\"]$"
    found = re.findall(pattern, text, re.MULTILINE)
    if found != [version]:
      messages.append(
        f'{name}: the version must be {version}, as in CHANGELOG.md, got'
        f' {", ".join(found) or "none"}'
      )
  return messages


def _git_faults(root: pathlib.Path, version: str) -> list[str]:
  messages = []
  changed = run(['git', '-C', root, 'status', '--porcelain'])
  if changed:
    messages.append(f'the tree has changes; commit them:\n{changed.rstrip()}')
  name = tag(version)
  tagged = run(['git', '-C', root, 'tag', '--list', name])
  at_head = run(['git', '-C', root, 'tag', '--list', name, '--points-at=HEAD'])
  if tagged and not at_head:
    messages.append(f'the tag {name} is at another commit; raise the version')
  return messages
