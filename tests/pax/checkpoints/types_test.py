# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The retention policy, parsed durations, chunk shapes."""

from __future__ import annotations

import pytest

from pax.checkpoints import tensorstore_format, types


def _steps_to_delete(saved_at, *, max_to_keep, keep_interval_secs=None):
  options = types.CheckpointOptions(
    max_to_keep=max_to_keep, keep_interval_secs=keep_interval_secs
  )
  return options.steps_to_delete(saved_at)


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


@pytest.mark.parametrize(
  ('text', 'seconds'),
  [('90s', 90), ('30m', 1800), ('12h', 43200), ('1.5d', 129600), ('', None)],
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
