# SPDX-License-Identifier: Apache-2.0
"""Runs the lines of stdin, and says after each that it is done."""

from __future__ import annotations

import logging
import sys

from pax import stop_signals, summaries
from pax.runner import job_log

_RATE = summaries.Rate(steps_per_sec=2.0, unit='tokens', units_per_sec=81_234.0)


def main() -> None:
  """Runs the lines, which know the names below."""
  job_log.log_to_console()
  now = [0.0]
  shown = summaries.Progress(10000, clock=lambda: now[0])

  def update(step: int) -> None:
    now[0] += 1
    numbers = {'loss': 2.34567, 'skipped': 3}
    shown.update(step, numbers, rate=_RATE, mfu=0.384, input_wait=0.01)

  names = {'update': update, 'shown': shown, 'now': now}
  names |= {'logging': logging, 'stop_signals': stop_signals}
  for line in sys.stdin:
    exec(line, names)
    print('done', flush=True)


if __name__ == '__main__':
  main()
