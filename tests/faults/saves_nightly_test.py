# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Every call of a save fails once, the disk is full from it on, or it is short.

The save succeeds or raises one error; the checkpoint before it is restored bit
by bit; no unfinished one counts; the next save succeeds (`faulty_saves`).
"""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from tests.faults import faulty_saves
from tests.testing import saved_states

pytestmark = pytest.mark.skipif(
  shutil.which('cc') is None, reason='no C compiler for file_faults.c'
)


@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
@pytest.mark.parametrize(
  ('action', 'count'),
  [
    (errno.EIO, 1),
    # The disk stays full.
    (errno.ENOSPC, 0),
    ('short', 1),
  ],
)
def test_every_call(tmp_path, report, layout, action, count):
  request = faulty_saves.Request(layout=layout, action=str(action), count=count)
  outcomes = faulty_saves.run(tmp_path / 'saves', [request])
  errors = [o.error for o in outcomes if o.error is not None]
  assert [o.call for o in outcomes] == list(range(1, len(outcomes) + 1))
  assert len(outcomes) > 8
  if action == 'short':
    assert not errors
  else:
    assert len(errors) > 8
  for error in errors:
    assert error.startswith(f'cannot write {tmp_path}'), error
    assert os.strerror(action) in error, error
    assert '\n' not in error, error
    assert len(error.replace(str(tmp_path), '')) < 400, error
  report(faults=len(outcomes), errors=len(errors))
