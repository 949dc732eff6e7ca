# SPDX-License-Identifier: Apache-2.0
"""Reads the error of a trial from its log."""

from __future__ import annotations

import dataclasses
import pathlib
import pydoc
import re
from collections.abc import Sequence

from pax.tuning import interfaces

# The last line of a traceback.
_RAISED = re.compile(r'^([A-Za-z_][\w.]*)(?:: (.*))?$', re.MULTILINE)
_TRACEBACK = 'Traceback (most recent call last):'


@dataclasses.dataclass(frozen=True)
class TrialError:
  """An error in another process."""

  # Type, with the module unless it is built in.
  name: str
  message: str

  def __str__(self) -> str:
    return f'{self.name}: {self.message}'

  def matches_any(self, errors: Sequence[interfaces.ErrorToSkip]) -> bool:
    """Returns whether it is of one of the types, and matches its regex."""
    return any(
      self._matches(*(error if isinstance(error, tuple) else (error, '')))
      for error in errors
    )

  def _matches(self, error_type: type[Exception], pattern: str) -> bool:
    own_type = pydoc.locate(self.name)
    has_type = isinstance(own_type, type) and issubclass(own_type, error_type)
    return has_type and bool(re.search(pattern, self.message))


def read_log(path: str) -> TrialError:
  """Returns the error of the last traceback in a log file."""
  text = pathlib.Path(path).read_text(errors='replace')
  match = _RAISED.search(text.rpartition(_TRACEBACK)[2])
  if not match:
    return TrialError('Exception', 'no traceback in the log')
  return TrialError(match[1], match[2] or '')
