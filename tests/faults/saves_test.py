# SPDX-License-Identifier: Apache-2.0
"""Some calls of a save fail; a complete checkpoint is on the disk.

tests/faults/saves_nightly_test.py fails every call.
"""

from __future__ import annotations

import errno
import os
import pathlib
import re
import shutil
import socket

import pytest

from pax.checkpoints import paths
from tests.faults import faulty_saves
from tests.testing import saved_states

pytestmark = pytest.mark.skipif(
  shutil.which('cc') is None, reason='no C compiler for file_faults.c'
)
# Names under which files are written before they are renamed.
_HOST = re.escape(socket.gethostname()[:8])
_TEMPORARY = re.compile(rf'\.{_HOST}[^/]*\.part$|\.__lock$')


def test_a_full_disk_and_errors_of_the_disk(tmp_path):
  requests = [
    faulty_saves.Request(
      layout=layout, action=str(number), count=count, calls=calls
    )
    for layout in saved_states.LAYOUTS
    for number, count, calls in (
      (errno.ENOSPC, 0, (1, 4, 9)),
      (errno.EIO, 1, (3, 6)),
    )
  ]
  outcomes = faulty_saves.run(tmp_path / 'saves', requests)
  assert len(outcomes) == 5 * len(saved_states.LAYOUTS)
  for outcome in outcomes:
    assert outcome.error is not None, outcome
    assert os.strerror(int(outcome.request.action)) in outcome.error, outcome
    assert outcome.error.startswith('cannot write '), outcome


def test_all_is_on_the_disk_before_the_rename(tmp_path):
  log = tmp_path / 'log'
  layouts = list(saved_states.LAYOUTS)
  requests = [
    faulty_saves.Request(layout=layout, action='kill', calls=(10**6,))
    for layout in layouts
  ]
  faulty_saves.run(tmp_path / 'saves', requests, log=log)
  calls = []
  for line in log.read_text().splitlines():
    call, _, path = line.partition(' ')
    calls.append((call, pathlib.Path(_TEMPORARY.sub('', path))))
  for index, layout in enumerate(layouts):
    directory = tmp_path / 'saves' / f'job_{index}' / paths.CHECKPOINTS
    own_calls = [c for c in calls if c[1].is_relative_to(directory)]
    _check_order(own_calls, directory, saved_states.LAYOUTS[layout].kind)


def _check_order(calls, directory, kind):
  """Checks the calls of a save: each file is flushed after its last change."""
  final = directory / paths.checkpoint_name(2, kind)
  staging = paths.staging(final)
  commit = calls.index(('rename', final))
  last_change = {}
  for index, (call, path) in enumerate(calls[:commit]):
    if not path.is_relative_to(staging):
      continue
    if call not in ('fsync', 'rename', 'unlink'):
      last_change[path] = index
    if call not in ('fsync', 'write'):
      # A name in the folder changed.
      last_change[path.parent] = index
  last_change.pop(directory, None)
  if kind is saved_states.FLAX:
    # Nothing else in the staging directory is needed.
    last_change = {staging / 'blob': last_change[staging / 'blob']}
  else:
    assert len(last_change) > 15
  for path, index in last_change.items():
    assert ('fsync', path) in calls[index:commit], path
  assert calls[commit + 1] == ('fsync', directory)
  # Older checkpoints are deleted when the new one is safe.
  deleted = [path for call, path in calls[: commit + 1] if call == 'unlink']
  assert all(path.is_relative_to(staging) for path in deleted)
