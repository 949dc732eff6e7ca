# SPDX-License-Identifier: Apache-2.0
"""The error that a trial ended with, as its log tells it."""

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

  # Its type, with the module if it is not built in.
  name: str
  # What it says.
  message: str

  def __str__(self) -> str:
    return f'{self.name}: {self.message}'

  def is_one_of(self, known: Sequence[interfaces.ErrorToSkip]) -> bool:
    """Whether it is of a type, and matches the regex that comes with it."""
    return any(
      self._is(*(error if isinstance(error, tuple) else (error, '')))
      for error in known
    )

  def _is(self, kind: type[Exception], pattern: str) -> bool:
    found = pydoc.locate(self.name)
    known = isinstance(found, type) and issubclass(found, kind)
    return known and bool(re.search(pattern, self.message))


def of_log(path: str) -> TrialError:
  """The last error whose traceback is in a file."""
  text = pathlib.Path(path).read_text(errors='replace')
  match = _RAISED.search(text.rpartition(_TRACEBACK)[2])
  if not match:
    return TrialError('Exception', 'it left no traceback')
  return TrialError(match[1], match[2] or '')
