# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Restores from a file system that hangs end the process.

A FIFO hangs as such a file does: nobody ever writes to it.
"""

from __future__ import annotations

import os
import threading
from concurrent import futures

import pytest

from pax import checkpoints
from pax.checkpoints import paths, read_deadline
from pax.files import storage
from tests.testing import polling, saved_states, trees

FLAX = checkpoints.CheckpointType.FLAX


@pytest.fixture
def reasons():
  """The reasons for which the process would have been ended."""
  ended: list[str] = []
  with read_deadline.enforced(0.2, ended.append):
    yield ended


@pytest.mark.parametrize('layout', list(saved_states.LAYOUTS))
def test_a_checkpoint_that_hangs(tmp_path, reasons, layout):
  kind, is_sharded, use_ocdbt = saved_states.LAYOUTS[layout]
  saver = saved_states.checkpointer(tmp_path, kind, use_ocdbt=use_ocdbt)
  state = saved_states.state(1, is_sharded=is_sharded)
  saver.save(5, state)
  saver.close()
  (path,) = paths.steps(tmp_path / 'checkpoints').values()
  file = path if kind is FLAX else next(path.rglob('process_0-of-1.json'))
  content = file.read_bytes()
  file.unlink()
  os.mkfifo(file)
  with futures.ThreadPoolExecutor(1) as pool:
    restored = pool.submit(saver.restore, trees.abstract(state))
    polling.wait_until(lambda: bool(reasons))
    assert not restored.done()
    # Ends the restore, whose second look finds a file.
    file.with_name('copy').write_bytes(content)
    descriptor = os.open(file, os.O_WRONLY)
    os.replace(file.with_name('copy'), file)
    os.close(descriptor)
    restored.exception()
  assert set(reasons) == {
    f'{path} cannot be read: no byte was read for 0.2 s'
    ' (--async_timeout_secs); its file system hangs. Nothing was changed'
  }


def test_bytes_that_any_thread_reads_are_progress(tmp_path):
  file = tmp_path / 'file'
  file.write_bytes(bytes(1000))
  with futures.ThreadPoolExecutor(1) as pool:
    pool.submit(file.exists).result()
    before = read_deadline._bytes_read()
    pool.submit(file.read_bytes).result()
    assert read_deadline._bytes_read() >= before + 1000


def test_a_library_ends_no_process(tmp_path):
  threads = threading.active_count()
  with read_deadline.limiting(tmp_path):
    assert threading.active_count() == threads


def test_requests_to_buckets_have_timeouts_of_their_own(reasons):
  threads = threading.active_count()
  with read_deadline.limiting(storage.to_path('memory://a/b')):
    assert threading.active_count() == threads
