# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Every second of a job counts to exactly one activity."""

from __future__ import annotations

import pytest

from pax.summaries import goodput


class Clock:
  """A clock that tests advance."""

  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now

  def spend(self, seconds: float):
    self.now += seconds


@pytest.fixture
def clock():
  return Clock()


def attempt(path, clock, resumed, ends, save_every=10):
  """A process: 5 s of start, 20 s of compilation, steps of 3 s."""
  recorder = goodput.Recorder(path, clock)
  clock.spend(5)
  with recorder.record(goodput.COMPILE):
    clock.spend(20)
  recorder.mark_resumed(resumed)
  for step in range(resumed, ends):
    if step % save_every == 0:
      with recorder.record(goodput.CHECKPOINT):
        clock.spend(2)
      recorder.mark_saved(step)
    with recorder.record(goodput.INPUT_WAIT):
      clock.spend(1)
    with recorder.record(goodput.STEP):
      clock.spend(3)
    recorder.mark_step(step + 1)
  return recorder


def test_one_process(tmp_path, clock):
  path = str(tmp_path / goodput.GOODPUT_FILE)
  recorder = attempt(path, clock, 0, 20)
  with recorder.record(goodput.EVAL):
    clock.spend(7)
  recorder.close()
  found = goodput.summarize(goodput.read(path))
  assert found.seconds == {
    'start': 5, 'compile': 20, 'input wait': 20, 'step': 60, 'eval': 7,
    'checkpoint': 4, 'restart': 0, 'lost': 0,
  }  # fmt: skip
  assert found.wall_secs == clock.now - 1000
  assert found.attempts == 1
  assert found.share == pytest.approx(60 / 116)


def test_the_input_wait_is_that_since_the_last_question(clock):
  recorder = goodput.Recorder(None, clock)
  assert recorder.input_wait() is None
  for wait in (1, 6):
    with recorder.record(goodput.INPUT_WAIT):
      clock.spend(wait)
    with recorder.record(goodput.EVAL):
      clock.spend(5)
    with recorder.record(goodput.STEP):
      clock.spend(4)
      assert recorder.input_wait() == pytest.approx(wait / (wait + 4))
  assert recorder.input_wait() is None


def test_the_inner_purpose_counts(clock):
  recorder = goodput.Recorder(None, clock)
  with recorder.record(goodput.STEP):
    clock.spend(1)
    with recorder.record(goodput.EVAL):
      clock.spend(10)
    clock.spend(2)
  assert recorder._seconds['step'] == 3 and recorder._seconds['eval'] == 10


def test_killed_and_started_again(tmp_path, clock):
  path = str(tmp_path / goodput.GOODPUT_FILE)
  # Killed between the steps 25 and 26: the checkpoint of step 20 is there.
  killed = attempt(path, clock, 0, 25)
  killed._file.close()
  clock.spend(60)
  # Killed again before a checkpoint of its own.
  killed = attempt(path, clock, 20, 23, save_every=1000)
  killed._file.close()
  with open(path, 'a', encoding='utf-8') as f:
    f.write('{"attempt": 1, "beg')
  clock.spend(30)
  attempt(path, clock, 20, 30).close()
  found = goodput.summarize(goodput.read(path))
  assert found.attempts == 3
  seconds = found.seconds
  assert sum(seconds.values()) == found.wall_secs == clock.now - 1000
  # A killed process has not written its last seconds: they are the restart's.
  unwritten = seconds['restart'] - 90
  assert 0 <= unwritten <= 2 * goodput._WRITE_SECS + 2 * 4
  assert seconds['lost'] + unwritten == pytest.approx((5 + 3) * 4)
  assert seconds['step'] == 30 * 3 and seconds['input wait'] == 30
  assert seconds['start'] == 15 and seconds['compile'] == 60


def test_the_end_of_a_preempted_process_is_not_lost(tmp_path, clock):
  path = str(tmp_path / goodput.GOODPUT_FILE)
  preempted = goodput.Recorder(path, clock)
  preempted.mark_resumed(0)
  with preempted.record(goodput.STEP):
    clock.spend(3)
  preempted.mark_step(1)
  preempted.mark_saved(1)
  # A thread completes the checkpoint.
  with preempted.record(goodput.CHECKPOINT):
    clock.spend(7)
  # A finished run evaluates its last state before a later command continues it.
  with preempted.record(goodput.EVAL):
    clock.spend(9)
  preempted.close()
  attempt(path, clock, 1, 5).close()
  seconds = goodput.summarize(goodput.read(path)).seconds
  assert seconds['lost'] == 0 and seconds['checkpoint'] == 7
  assert seconds['eval'] == 9


def test_the_time_after_a_finished_job_is_idle(tmp_path, clock):
  path = str(tmp_path / goodput.GOODPUT_FILE)
  idle = 0
  for is_finished, pause in ((True, 1000), (False, 60), (True, 500)):
    recorder = attempt(path, clock, 0, 10)
    if is_finished:
      recorder.mark_finished()
      idle += pause
    with recorder.record(goodput.CHECKPOINT):
      clock.spend(4)
    recorder.close()
    clock.spend(pause)
  attempt(path, clock, 10, 20).close()
  found = goodput.summarize(goodput.read(path))
  assert found.seconds['restart'] == 60
  assert found.wall_secs == clock.now - 1000 - idle


def test_a_line_for_people(tmp_path, clock):
  path = str(tmp_path / goodput.GOODPUT_FILE)
  attempt(path, clock, 0, 200).close()
  found = goodput.summarize(goodput.read(path))
  line = goodput.summary_line(found)
  assert line.startswith('goodput 69.')
  assert 'step 10m00s  input wait 3m20s  checkpoint 40s  compile 20s' in line
  assert 'lost' not in line and 'starts' not in line
  assert goodput.summarize([]) is None
