# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The ledger of a job that SIGTERM and SIGKILL interrupt."""

from __future__ import annotations

import itertools
import signal

import pytest

from pax.summaries import goodput
from tests.integration import binary
from tests.testing import polling

_WORDS = (
  '--set=SECONDS=0.02',
  # Means over steps, some of which are before a checkpoint and some after.
  '--set=SAVE_EVERY=6',
  '--set=task.train.summary_interval_steps=4',
  '--set=task.train.summary_accumulate_interval_steps=1',
)
_EXIT_CODES = {signal.SIGTERM: 75, signal.SIGKILL: -signal.SIGKILL}


@pytest.fixture(scope='module')
def job(tmp_path_factory):
  """A finished job; the newest checkpoint after each of its starts."""
  directory = tmp_path_factory.mktemp('job')
  steps = [0]
  for number in _EXIT_CODES:
    process = binary.start(
      'TinySpmd', directory, *_WORDS, f'--set=NUM_STEPS={10**6}'
    )
    # Some steps after the next checkpoint.
    polling.wait_until(
      lambda first=steps[-1]: (
        (directory / 'metrics.jsonl').exists()
        and max(binary.losses(directory), default=0) > first + 9
      ),
      binary.TIMEOUT_SECS,
    )
    process.send_signal(number)
    ended = process.wait(binary.TIMEOUT_SECS)
    assert ended.returncode == _EXIT_CODES[number], ended.stderr
    steps.append(_newest_step(directory))
  steps.append(steps[-1] + 3)
  _finish(directory, steps[-1])
  return directory, steps


def _finish(directory, num_steps):
  ended = binary.run(
    'TinySpmd', directory, *_WORDS, f'--set=NUM_STEPS={num_steps}'
  )
  assert ended.returncode == 0, ended.stderr


def _newest_step(directory):
  names = binary.checkpoint_names(directory)
  return max(
    int(digits)
    for name in names
    if (digits := name.removeprefix('checkpoint_')).isdecimal()
  )


@pytest.fixture(scope='module')
def attempts(job):
  """The records of each start."""
  directory, _ = job
  records = goodput.read(directory / goodput.GOODPUT_FILE)
  return [
    list(group)
    for _, group in itertools.groupby(records, lambda r: r['attempt'])
  ]


def test_each_start_continues_from_the_newest_checkpoint(job, attempts):
  _, steps = job
  assert [attempt[0]['attempt'] for attempt in attempts] == [0, 1, 2]
  resumed = [r['step'] for a in attempts for r in a if r.get('resumed')]
  assert resumed == steps[:-1]
  assert attempts[-1][-1]['step'] == steps[-1]


def test_every_moment_of_a_start_is_of_one_activity(attempts):
  for attempt in attempts:
    for record in attempt:
      seconds = record['time'] - record['began']
      assert sum(record['seconds'].values()) == pytest.approx(seconds, abs=1e-6)
    for earlier, later in itertools.pairwise(attempt):
      for activity, spent in earlier['seconds'].items():
        assert later['seconds'][activity] >= spent


def test_the_sums_of_all_starts_are_the_time_of_the_job(attempts):
  total = goodput.summarize([r for attempt in attempts for r in attempt])
  wall_secs = attempts[-1][-1]['time'] - attempts[0][0]['began']
  assert total.wall_secs == pytest.approx(wall_secs, abs=1e-6)
  assert sum(total.seconds.values()) == pytest.approx(wall_secs, abs=1e-6)
  gaps = sum(
    later[0]['began'] - earlier[-1]['time']
    for earlier, later in itertools.pairwise(attempts)
  )
  assert total.seconds[goodput.RESTART] == pytest.approx(gaps, abs=1e-6)
  for activity in goodput.ACTIVITIES:
    if activity in (goodput.RESTART, goodput.LOST):
      continue
    spent = sum(a[-1]['seconds'].get(activity, 0.0) for a in attempts)
    assert total.seconds[activity] <= spent + 1e-6


def test_means_over_steps_are_those_of_an_uninterrupted_job(job, tmp_path):
  directory, steps = job
  _finish(tmp_path, steps[-1])
  means = binary.loss_bits(tmp_path)
  assert sorted(means) == list(range(0, steps[-1], 4))
  assert binary.loss_bits(directory).items() >= means.items()
