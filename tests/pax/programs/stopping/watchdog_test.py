# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A run that hangs is stopped, with the stacks of its threads."""

from __future__ import annotations

import threading
import time

import pytest

from pax import exit_codes
from pax.programs.stopping import watchdog
from pax.programs.stopping.stop_request import StopRequest


def test_a_hang_shows_the_stacks_requests_a_stop_and_then_ends(tmp_path, capfd):
  log = tmp_path / 'log'
  log.write_text('before\n')
  ended = threading.Event()
  ends, request = [], StopRequest()

  def end(code, text):
    ends.append((code, text, request.is_set()))
    ended.set()

  watched = watchdog.HangWatchdog(
    0.2, str(log), request, grace_secs=0.2, end=end
  )
  watched.beat()
  assert ended.wait(30)
  watched.close()
  ((code, text, is_requested),) = ends
  assert (code, is_requested) == (exit_codes.HANG, True)
  assert request.exit_code == exit_codes.HANG
  assert text.startswith('hang: the job does not stop within 0.2 s')
  text = log.read_text()
  assert text.startswith('before\npax: hang: no step for 0.2 s')
  assert 'test_a_hang_shows_the_stacks' in text
  assert 'pax: hang' in capfd.readouterr().err


@pytest.mark.parametrize('response', ['beat', 'pause'])
def test_a_job_that_responds_to_the_request_may_save(tmp_path, response):
  ends, request = [], StopRequest()
  watched = watchdog.HangWatchdog(
    0.2,
    str(tmp_path / 'log'),
    request,
    grace_secs=3600,
    end=lambda *end: ends.append(end),
  )
  watched.beat()
  assert request.wait(30)
  getattr(watched, response)()
  watched.pause()
  watched.close()
  assert not ends


def test_beats_keep_it_quiet_and_nothing_counts_before_the_first(tmp_path):
  request = StopRequest()
  watched = watchdog.HangWatchdog(0.4, str(tmp_path / 'log'), request)
  time.sleep(0.6)
  for _ in range(6):
    watched.beat()
    time.sleep(0.1)
  watched.pause()
  time.sleep(0.6)
  watched.close()
  assert not request.is_set()


@pytest.mark.parametrize(
  ('timeout_secs', 'num_processes', 'watches'),
  [(None, 1, False), (None, 2, True), (0, 2, False), (5, 1, True)],
)
def test_jobs_of_several_processes_are_watched_by_default(
  tmp_path, timeout_secs, num_processes, watches
):
  watched = watchdog.create_watchdog(
    timeout_secs, str(tmp_path / 'log'), StopRequest(), num_processes
  )
  watched.close()
  assert isinstance(watched, watchdog.HangWatchdog) == watches


def test_the_timeout_is_positive(tmp_path):
  with pytest.raises(ValueError, match='hang_timeout_secs must be positive'):
    watchdog.create_watchdog(-1, str(tmp_path), StopRequest(), 1)
