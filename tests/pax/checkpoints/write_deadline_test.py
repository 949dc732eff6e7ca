# SPDX-License-Identifier: Apache-2.0
"""Saves on a file system that hangs end by an error, or end the process."""

# bazel: size=medium
from __future__ import annotations

import contextlib
import threading
import time
from concurrent import futures

import jax.numpy as jnp
import pytest

from pax import checkpoints
from pax.checkpoints import paths, write_deadline
from pax.checkpoints.formats import database_writer
from pax.files import atomic_file, storage
from tests.testing import polling, saved_states


@pytest.fixture
def hang(monkeypatch):
  """Makes each flush hang until the end of the test."""
  released, begun = threading.Event(), threading.Event()

  def begin():
    def sync(path):
      begun.set()
      released.wait()

    monkeypatch.setattr(atomic_file, 'sync', sync)
    return begun

  yield begin
  released.set()


def _deadline(tmp_path, timeout_secs=0.05, **kwargs):
  return write_deadline.WriteDeadline(tmp_path, timeout_secs, **kwargs)


@pytest.mark.parametrize('layout', list(saved_states.LAYOUTS))
@pytest.mark.parametrize(
  'method', ['check_for_errors', 'wait', 'close', 'save']
)
def test_a_save_that_hangs_is_an_error(tmp_path, hang, layout, method):
  kind, is_sharded, use_ocdbt = saved_states.LAYOUTS[layout]
  saver = saved_states.checkpointer(tmp_path, kind, use_ocdbt=use_ocdbt)
  state = saved_states.state(2, is_sharded=is_sharded)
  saver.save(0, state)
  saver.wait()
  begun = hang()
  saver.save(5, state)
  begun.wait()
  saver._deadline._timeout_secs = 0.2
  with pytest.raises(
    checkpoints.CheckpointTimeoutError,
    match=rf'{tmp_path}/checkpoints cannot be written: no file changed for'
    r' 0.2 s \(--async_timeout_secs\); its file system hangs',
  ):
    if method == 'save':
      saver.save(10, state)
    else:
      polling.wait_until(saver._deadline.is_over)
      getattr(saver, method)()
  saver.abandon(1000)
  assert list(paths.steps(tmp_path / 'checkpoints')) == [0]


def test_a_write_that_hangs_is_an_error(tmp_path, monkeypatch):
  released = threading.Event()
  monkeypatch.setattr(
    database_writer, 'write', lambda *args, **kwargs: released.wait()
  )
  saver = saved_states.checkpointer(
    tmp_path, asynchronous=False, timeout_secs=0.1
  )
  with pytest.raises(checkpoints.CheckpointTimeoutError, match='hangs'):
    saver.save(0, {'w': jnp.ones(3)})
  released.set()


def test_files_that_are_written_or_deleted_are_progress(tmp_path):
  folder = tmp_path / 'tmp_delete_checkpoint_00000001'
  folder.mkdir()
  deadline = _deadline(tmp_path, 1)
  with deadline.limiting():
    for change in (
      lambda: (folder / 'file').write_bytes(b'1'),
      lambda: (folder / 'file').write_bytes(b'12'),
      (folder / 'file').unlink,
    ):
      before = deadline._changed_at
      change()
      polling.wait_until(lambda: deadline._changed_at > before)  # noqa: B023


def test_an_error_of_a_look_does_not_end_the_looks(tmp_path, monkeypatch):
  looks = []

  def measure(directory):
    looks.append(directory)
    if len(looks) == 1:
      raise OSError('stale file handle')
    return len(looks), 0

  monkeypatch.setattr(write_deadline, '_measure', measure)
  deadline = _deadline(tmp_path)
  with deadline.limiting():
    begin = deadline._changed_at
    polling.wait_until(lambda: deadline._changed_at > begin)


def test_waiting_for_other_processes_is_not_limited(tmp_path):
  deadline = _deadline(tmp_path)
  with deadline.limiting():
    with deadline.paused():
      time.sleep(4 * deadline._timeout_secs)
      assert not deadline.is_over()
    polling.wait_until(deadline.is_over)
  assert not deadline.is_over()


def test_the_process_is_ended_if_no_thread_raises_the_error(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(write_deadline, '_GRACE_SECS', 0.05)
  ended: futures.Future[str] = futures.Future()

  def end_process(text):
    with contextlib.suppress(futures.InvalidStateError):
      ended.set_result(text)

  deadline = _deadline(tmp_path, end_process=end_process)
  with deadline.limiting():
    assert 'its file system hangs' in ended.result()


def test_requests_to_buckets_have_timeouts_of_their_own():
  deadline = _deadline(storage.to_path('memory://a/b'), 1e-9)
  with deadline.limiting():
    assert not deadline.is_over()
