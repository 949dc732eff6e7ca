# SPDX-License-Identifier: Apache-2.0
"""Where the time of a job went, over all its restarts, to the last second.

A ledger counts every moment of a process to exactly one purpose, and writes the
sums to `goodput.jsonl`. What one process trained and no later one continued
from is lost; the time between two processes is that of the restart.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from pax.summaries import jsonl, progress

# In the job directory.
GOODPUT_FILE = 'goodput.jsonl'

START = 'start'
COMPILE = 'compile'
INPUT_WAIT = 'input wait'
STEP = 'step'
EVAL = 'eval'
CHECKPOINT = 'checkpoint'
RESTART = 'restart'
LOST = 'lost'
PURPOSES = (
  STEP,
  INPUT_WAIT,
  EVAL,
  CHECKPOINT,
  COMPILE,
  START,
  RESTART,
  LOST,
)

# What is lost when its step has to be done again.
_OF_STEPS = (STEP, INPUT_WAIT, EVAL, CHECKPOINT)
# A killed process has written its sums at most so long ago.
_WRITE_SECS = 5.0
# Less is not told.
_WORTH_SECS = 0.5


class Ledger:
  """The times of one process; it is started by its construction.

  Everything is `start` until something else is said, by `during`.
  """

  def __init__(
    self,
    path: str | None,
    clock: Callable[[], float] = time.time,
    began: float | None = None,
  ):
    """Begins to count.

    Args:
      path: of the file; None counts and writes nothing.
      clock: gives seconds since 1970, as other processes have them.
      began: when the process did; None is now.
    """
    self._clock = clock
    self._began = self._last = clock() if began is None else began
    self._seconds: dict[str, float] = collections.defaultdict(float)
    self._purpose = START
    self._written = float('-inf')
    self._step: int | None = None
    self._file = None
    self._earlier = [] if path is None else read(path)
    self._attempt = len(_attempts(self._earlier))
    if path is not None:
      self._file = jsonl.open_to_append(path)
    self._write()

  def during(self, purpose: str) -> _During:
    """While entered, time is spent on `purpose`."""
    return _During(self, purpose)

  def resumed(self, step: int) -> None:
    """Tells from which step this process goes on."""
    self._step = step
    self._write(resumed=True)

  def saved(self, step: int) -> None:
    """Tells that what was done until `step` has been handed to be saved."""
    self._step = step
    self._write(saved=True)

  def reached(self, step: int) -> None:
    """Tells that `step` steps are done; writes now and then."""
    self._step = step
    if self._clock() - self._written > _WRITE_SECS:
      self._write()

  def summary_line(self) -> str:
    """Where the time of the job went until now, for people."""
    return summary_line(summarize([*self._earlier, self._record()]))

  def close(self) -> None:
    """Writes the last sums."""
    if self._file is not None:
      self._write()
      self._file.close()
      self._file = None

  def _switch(self, purpose: str) -> str:
    """Counts until now, and from now to `purpose`; returns the last one."""
    now = self._clock()
    self._seconds[self._purpose] += now - self._last
    self._last = now
    last, self._purpose = self._purpose, purpose
    return last

  def _write(self, **marks: bool) -> None:
    if self._file is not None:
      jsonl.append(self._file, self._record() | marks)
      self._written = self._last

  def _record(self) -> dict[str, Any]:
    self._switch(self._purpose)
    return {
      'attempt': self._attempt,
      'began': self._began,
      'time': self._last,
      'step': self._step,
      'seconds': dict(self._seconds),
    }


class _During:
  """A `with` statement; a class, since this is on the path of every step."""

  __slots__ = ('_before', '_ledger', '_purpose')

  def __init__(self, ledger: Ledger, purpose: str):
    self._ledger = ledger
    self._purpose = purpose

  def __enter__(self) -> None:
    self._before = self._ledger._switch(self._purpose)

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    where: TracebackType | None,
  ) -> None:
    self._ledger._switch(self._before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput:
  """Where the time of a job went."""

  # Seconds by purpose; they add up to `wall_secs`.
  seconds: Mapping[str, float]
  # From the start of the first process to the last sign of the last one.
  wall_secs: float
  # How many processes it took.
  attempts: int

  @property
  def share(self) -> float:
    """The share of the time in which steps were done that count."""
    return self.seconds[STEP] / self.wall_secs if self.wall_secs else 0.0


read = jsonl.read


def summarize(records: Sequence[Mapping[str, Any]]) -> Goodput | None:
  """What a job's records say together; None if there are none."""
  attempts = _attempts(records)
  if not attempts:
    return None
  seconds: dict[str, float] = dict.fromkeys(PURPOSES, 0.0)
  end = attempts[0][0]['began']
  for i, attempt in enumerate(attempts):
    last = attempt[-1]
    # Clocks may be set back; a restart takes no negative time.
    seconds[RESTART] += max(0.0, last['began'] - end)
    end = last['time']
    lost = _lost(attempt, attempts[i + 1 :])
    for purpose, spent in last['seconds'].items():
      seconds[purpose] += spent - lost.get(purpose, 0.0)
    seconds[LOST] += sum(lost.values())
  return Goodput(
    seconds=seconds, wall_secs=sum(seconds.values()), attempts=len(attempts)
  )


def summary_line(goodput: Goodput) -> str:
  """As `goodput 93.1%  step 12m05s  compile 20s  start 9s  (2 starts)`."""
  parts = [
    f'{purpose} {progress.short_time(spent)}'
    for purpose, spent in goodput.seconds.items()
    if spent >= _WORTH_SECS
  ]
  if goodput.attempts > 1:
    parts.append(f'({goodput.attempts} starts)')
  return '  '.join([f'goodput {100 * goodput.share:.1f}%', *parts])


def _attempts(
  records: Sequence[Mapping[str, Any]],
) -> list[list[Mapping[str, Any]]]:
  """The records of each process, in the order in which they ran."""
  found: dict[int, list[Mapping[str, Any]]] = {}
  for record in records:
    found.setdefault(record['attempt'], []).append(record)
  return [found[number] for number in sorted(found)]


def _lost(
  attempt: Sequence[Mapping[str, Any]],
  later: Sequence[Sequence[Mapping[str, Any]]],
) -> dict[str, float]:
  """What a process spent on steps that a later one had to do again."""
  kept_until = min(_resumed_at(later), default=None)
  if kept_until is None:
    return {}
  kept = next(_kept(attempt, kept_until), None)
  # Without a checkpoint of its own all its steps are lost.
  before = kept['seconds'] if kept else {}
  after = attempt[-1]['seconds']
  return {p: after.get(p, 0.0) - before.get(p, 0.0) for p in _OF_STEPS}


def _resumed_at(
  attempts: Sequence[Sequence[Mapping[str, Any]]],
) -> Iterator[int]:
  for attempt in attempts:
    yield from (r['step'] for r in attempt if r.get('resumed'))


def _kept(
  attempt: Sequence[Mapping[str, Any]], step: int
) -> Iterator[Mapping[str, Any]]:
  """The last record of a process by which all it did had been saved."""
  for record in reversed(attempt):
    marked = record.get('saved') or record.get('resumed')
    if marked and record['step'] <= step:
      yield record
