# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Some calls of a save fail; a complete checkpoint is on the disk.

tests/faults/saves_nightly_test.py fails every call.
"""

from __future__ import annotations

import errno
import pathlib
import re

import pytest

from pax.checkpoints import paths
from tests.faults import faulty_saves
from tests.testing import saved_states

# Names under which files are written before they are renamed.
_TEMPORARY = re.compile(r'\.[0-9a-f]{12}\.part$|\.__lock$')


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
    text = _text_of(outcome.request.action)
    assert text in outcome.error, outcome
    assert outcome.error.startswith('cannot write '), outcome


def _text_of(action):
  return {
    str(errno.ENOSPC): 'No space left on device',
    str(errno.EIO): 'Input/output error',
  }[action]


@pytest.mark.parametrize('layout', saved_states.LAYOUTS)
def test_all_is_on_the_disk_before_the_rename(tmp_path, layout):
  log = tmp_path / 'log'
  never = faulty_saves.Request(layout=layout, action='kill', calls=(10**6,))
  faulty_saves.run(tmp_path / 'saves', [never], log=str(log))
  calls = []
  for line in log.read_text().splitlines():
    call, _, path = line.partition(' ')
    calls.append((call, pathlib.Path(_TEMPORARY.sub('', path))))
  directory = tmp_path / 'saves' / 'job_0' / 'checkpoints'
  kind = saved_states.LAYOUTS[layout][0]
  final = directory / paths.checkpoint_name(2, kind)
  staging = paths.staging(final)
  commit = calls.index(('rename', final))
  # Of the one file nothing else in the staging directory is needed.
  files = {staging / 'blob'} if kind is saved_states.FLAX else None
  last_change = {}
  for index, (call, path) in enumerate(calls[:commit]):
    if call != 'fsync' and path.is_relative_to(staging):
      if call not in ('rename', 'unlink'):
        last_change[path] = index
      if call != 'write':
        # A name in the folder changed.
        last_change[path.parent] = index
  last_change.pop(directory, None)
  assert len(last_change) > 5
  for path, index in last_change.items():
    if files is None or path in files:
      assert ('fsync', path) in calls[index:commit], path
  assert calls[commit + 1] == ('fsync', directory)
  # Older checkpoints are deleted when the new one is safe.
  assert all(call != 'unlink' for call, _ in calls[: commit + 1])
