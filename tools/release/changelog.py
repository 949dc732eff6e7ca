# SPDX-License-Identifier: Apache-2.0
"""The newest version in CHANGELOG.md, and what it says about it."""

from __future__ import annotations

import dataclasses
import re

from tools.release.programs import ReleaseError

_RELEASED = re.compile(r'## (?P<version>\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)')
_OPEN = re.compile(r'## Unreleased \((?P<version>\d+\.\d+\.\d+)\)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
  """A version in the changelog."""

  version: str
  # Whether its heading has a date.
  is_released: bool
  # The text below the heading.
  notes: str


def newest(text: str) -> Section:
  """Returns the first section of a changelog.

  Raises:
    ReleaseError: its heading has another form.
  """
  _, _, rest = text.partition('\n## ')
  heading, _, body = f'## {rest}'.partition('\n')
  released = _RELEASED.fullmatch(heading)
  match = released or _OPEN.fullmatch(heading)
  if not match:
    raise ReleaseError(
      f'CHANGELOG.md: its first section must be "## Unreleased (X.Y.Z)" or'
      f' "## X.Y.Z (YYYY-MM-DD)", got {heading!r}'
    )
  notes = body.partition('\n## ')[0].strip()
  return Section(
    version=match['version'], is_released=bool(released), notes=notes
  )
