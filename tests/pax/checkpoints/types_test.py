# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The retention policy, parsed durations, chunk shapes."""

from __future__ import annotations

import math

import pytest

from pax.checkpoints import types
from pax.checkpoints.formats import tensorstore_format


def _steps_to_delete(
  saved_at, *, max_to_keep, keep_interval_secs=None, pinned=()
):
  options = types.CheckpointOptions(
    max_to_keep=max_to_keep, keep_interval_secs=keep_interval_secs
  )
  return options.steps_to_delete(saved_at, pinned)


def test_keeps_all_without_a_limit():
  assert _steps_to_delete({1: 1.0, 2: 2.0}, max_to_keep=None) == []


def test_deletes_all_but_the_newest():
  times = {step: float(step) for step in range(5)}
  assert _steps_to_delete(times, max_to_keep=2) == [0, 1, 2]
  assert _steps_to_delete(times, max_to_keep=9) == []


def test_keeps_one_per_interval_besides_the_newest():
  hours = {0: 0, 10: 5, 20: 11, 30: 12, 40: 20, 50: 25, 60: 26, 70: 27}
  times = {step: 3600.0 * hour for step, hour in hours.items()}
  # Kept by time: 0 (the first), 30 (12 h), 50 (25 h).
  expired = _steps_to_delete(
    times, max_to_keep=2, keep_interval_secs=12 * 3600.0
  )
  assert expired == [10, 20, 40]


def test_a_checkpoint_of_exactly_the_interval_stays():
  times = {0: 0.0, 1: 9.0, 2: 10.0, 3: 19.9, 4: 20.0, 5: 21.0}
  assert _steps_to_delete(times, max_to_keep=1, keep_interval_secs=10) == [1, 3]


def test_a_clock_that_was_ahead_deletes_no_later_ones():
  times = {0: 0.0, 10: 1e9, 20: 20.0, 30: 40.0, 40: 60.0}
  assert _steps_to_delete(times, max_to_keep=1, keep_interval_secs=10) == []


def test_pinned_steps_stay_besides_the_newest():
  times = {step: float(step) for step in range(6)}
  expired = _steps_to_delete(times, max_to_keep=2, pinned={0, 5, 99})
  assert expired == [1, 2]


def test_steps_to_keep_count_among_the_newest():
  options = types.CheckpointOptions(
    max_to_keep=2, should_keep=lambda step: step % 4 == 0
  )
  times = {step: float(step) for step in range(9)}
  assert options.steps_to_delete(times) == [1, 2, 3, 5, 6]


def test_preserve_replaces_the_other_limits_but_not_pins():
  options = types.CheckpointOptions(max_to_keep=1, preserve=lambda times: [1])
  times = {step: float(step) for step in range(5)}
  assert options.steps_to_delete(times, pinned={2}) == [0, 3]


def test_the_newest_is_never_deleted():
  for count in range(1, 4):
    for newest in range(5):
      times = dict.fromkeys(range(newest + 1), 0.0)
      for pinned in ((), (0,), (newest,)):
        expired = _steps_to_delete(
          times, max_to_keep=count, keep_interval_secs=1, pinned=pinned
        )
        assert newest not in expired


@pytest.mark.parametrize(
  ('field', 'option', 'values'),
  [
    ('max_to_keep', 'save_max_to_keep', [0, -1, 2.5, True, '3', math.nan]),
    ('save_interval_steps', 'save_interval_steps', [0, -1, None, math.inf]),
    ('keep_interval_secs', 'save_keep_interval_duration', [0, -1.0, math.inf]),
    ('todelete_subdir', 'todelete_subdir', ['', '5', '../a', 'a/b', 'tmp_a']),
    ('timeout_secs', 'async_timeout_secs', [0, -1, None, '1']),
  ],
)
def test_options_that_lose_checkpoints_are_refused(field, option, values):
  for value in values:
    with pytest.raises(ValueError, match=f'{option} must be .* got {value!r}'):
      types.CheckpointOptions(**{field: value})


@pytest.mark.parametrize(
  ('text', 'seconds'),
  [
    ('90s', 90),
    ('30m', 1800),
    ('12h', 43200),
    ('1.5d', 129600),
    ('90', 90),
    ('', None),
  ],
)
def test_parse_duration(text, seconds):
  assert types.parse_duration(text) == seconds


def test_bad_duration():
  with pytest.raises(ValueError, match="as in '12h'; got '12 parsecs'"):
    types.parse_duration('12 parsecs')


@pytest.mark.parametrize(
  ('piece', 'itemsize', 'chunk'),
  [((8, 8), 4, (4, 8)), ((4, 4), 4, (4, 4)), ((), 4, ()), ((100,), 4, (25,))],
)
def test_chunks_divide_pieces(piece, itemsize, chunk):
  assert tensorstore_format.chunk_shape(piece, itemsize, 128) == chunk
