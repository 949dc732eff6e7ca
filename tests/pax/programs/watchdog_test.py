# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A run that hangs is ended, with the stacks of its threads."""

from __future__ import annotations

import threading
import time

import pytest

from pax.programs import watchdog


def test_a_hang_ends_the_process_and_shows_where(tmp_path, capfd):
  log = tmp_path / 'log'
  log.write_text('before\n')
  ended = threading.Event()
  codes = []

  def end(code):
    codes.append(code)
    ended.set()

  watched = watchdog.HangWatchdog(0.2, str(log), end)
  watched.beat()
  assert ended.wait(10)
  watched.close()
  assert codes == [124]
  text = log.read_text()
  assert text.startswith('before\npax: hang: no step for 0.2 s')
  assert 'test_a_hang_ends_the_process' in text
  assert 'pax: hang' in capfd.readouterr().err


def test_beats_keep_it_quiet_and_nothing_counts_before_the_first(tmp_path):
  codes = []
  watched = watchdog.HangWatchdog(0.4, str(tmp_path / 'log'), codes.append)
  time.sleep(0.6)
  for _ in range(6):
    watched.beat()
    time.sleep(0.1)
  watched.pause()
  time.sleep(0.6)
  watched.close()
  assert codes == []


def test_settings(tmp_path):
  assert isinstance(watchdog.create_watchdog(None, ''), watchdog.NoopWatchdog)
  with pytest.raises(ValueError, match='hang_timeout_secs must be positive'):
    watchdog.create_watchdog(0, str(tmp_path))
