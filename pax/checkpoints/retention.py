# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints have served their time."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def steps_to_delete(
  times: Mapping[int, float],
  max_to_keep: int | None,
  keep_interval_secs: float | None = None,
) -> list[int]:
  """The steps to delete, given when each was saved.

  The newest `max_to_keep` stay. Of the older ones, the first stays and then
  each that is `keep_interval_secs` younger than the last that stayed.
  """
  if max_to_keep is None:
    return []
  older = sorted(times)[: max(len(times) - max_to_keep, 0)]
  doomed, last_kept = [], float('-inf')
  for step in older:
    if keep_interval_secs and times[step] - last_kept >= keep_interval_secs:
      last_kept = times[step]
    else:
      doomed.append(step)
  return doomed


def parse_duration(text: str | None) -> float | None:
  """Seconds of a duration such as '90s', '30m', '12h' or '1d'."""
  if not text:
    return None
  match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([smhd])', text.strip())
  if not match:
    raise ValueError(
      'save_keep_interval_duration must be a number and one of s, m, h, d,'
      f" as in '12h'; got {text!r}"
    )
  return float(match[1]) * _SECONDS[match[2]]
