# SPDX-License-Identifier: Apache-2.0
"""Goodput: the wall time of a job by activity, over all its restarts.

A recorder assigns every moment of a process to exactly one activity and writes
the sums to `goodput.jsonl`. Steps that a later process repeats are lost; the
time between two processes is the time of the restart, unless the job was
finished.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypedDict

from pax.files import side_files, storage
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
ACTIVITIES = (
  STEP,
  INPUT_WAIT,
  EVAL,
  CHECKPOINT,
  COMPILE,
  START,
  RESTART,
  LOST,
)

# Lost when their steps are repeated.
_STEP_ACTIVITIES = (STEP, INPUT_WAIT, EVAL, CHECKPOINT)
# Longest time between two records, the most that a killed process loses.
_WRITE_SECS = 5.0
# Activities with less time are not shown.
_MIN_SHOWN_SECS = 0.5


class Record(TypedDict, total=False):
  """One line of the file: the sums of one process so far."""

  # Index of the process among those of the job.
  attempt: int
  # Start of the process and time of the record, in seconds since 1970.
  began: float
  time: float
  # The current step; None before the first.
  step: int | None
  # Seconds by activity.
  seconds: dict[str, float]
  # Whether the process restored `step`, or saved a checkpoint of it.
  resumed: bool
  saved: bool
  # Whether the process has nothing left to do.
  finished: bool


class Recorder:
  """Records the time of one process, from its construction.

  The activity is `start` outside of `record`.
  """

  def __init__(
    self,
    path: str | None,
    clock: Callable[[], float] = time.time,
    began: float | None = None,
  ):
    """Starts to record.

    Args:
      path: The file; None writes nothing.
      clock: Returns seconds since 1970, the same in all processes.
      began: Start of the process; None is now.
    """
    self._clock = clock
    self._began = self._last = clock() if began is None else began
    self._seconds: dict[str, float] = collections.defaultdict(float)
    self._activity = START
    # Seconds of input wait and of steps at the last call of `input_wait`.
    self._waits = (0.0, 0.0)
    self._written_at = float('-inf')
    self._step: int | None = None
    self._is_finished = False
    self._path = path
    self._file: jsonl.Appender | None = None
    self._earlier = [] if path is None else jsonl.repair(path, _parse)
    attempts = (record['attempt'] for record in self._earlier)
    self._attempt = max(attempts, default=-1) + 1
    self._open()
    self._write()

  def record(self, activity: str) -> _Activity:
    """Returns a context manager whose block is time of `activity`."""
    return _Activity(self, activity)

  def mark_resumed(self, step: int) -> None:
    """Marks that this process continues from `step`."""
    self._step = step
    self._write(resumed=True)

  def mark_saved(self, step: int) -> None:
    """Marks that a checkpoint of `step` is being written."""
    self._step = step
    if self._file is None:
      # The file system may have space again, or be mounted again.
      self._open()
    self._write(saved=True)

  def mark_step(self, step: int) -> None:
    """Marks that `step` steps are done."""
    self._step = step
    if self._clock() - self._written_at > _WRITE_SECS:
      self._write()

  def mark_finished(self) -> None:
    """Marks that no step is left: the time until another start is idle."""
    self._is_finished = True
    self._write()

  def input_wait(self) -> float | None:
    """Returns the share of the time of steps in which they wait for a batch.

    It is that since the previous call; None without steps.
    """
    self._switch(self._activity)
    sums = self._seconds[INPUT_WAIT], self._seconds[STEP]
    wait, step = (
      total - before for total, before in zip(sums, self._waits, strict=True)
    )
    self._waits = sums
    return wait / (wait + step) if step > 0 else None

  def summary_line(self) -> str:
    """Returns the goodput of the job so far as one line."""
    attempts = _by_attempt([*self._earlier, self._record()])
    return summary_line(_of_attempts(attempts))

  def close(self) -> None:
    """Writes the last sums."""
    self._write()
    self._close()
    self._path = None

  def _switch(self, activity: str) -> str:
    """Ends the current activity, which it returns, and starts the next."""
    now = self._clock()
    self._seconds[self._activity] += now - self._last
    self._last = now
    previous, self._activity = self._activity, activity
    return previous

  def _write(self, *, resumed: bool = False, saved: bool = False) -> None:
    if self._file is None:
      return
    record = self._record()
    if resumed:
      record['resumed'] = True
    if saved:
      record['saved'] = True
    try:
      self._file.append(record)
    except OSError as e:
      side_files.report_unwritable(self._file.path, e)
      self._close()
    self._written_at = self._last

  def _open(self) -> None:
    if self._path is not None:
      with side_files.tolerate_errors(self._path):
        self._file = jsonl.Appender(self._path)

  def _close(self) -> None:
    file, self._file = self._file, None
    if file is not None:
      with side_files.tolerate_errors(file.path):
        file.close()

  def _record(self) -> Record:
    self._switch(self._activity)
    record: Record = {
      'attempt': self._attempt,
      'began': self._began,
      'time': self._last,
      'step': self._step,
      'seconds': dict(self._seconds),
    }
    if self._is_finished:
      record['finished'] = True
    return record


class _Activity:
  """Context manager of an activity; a class, since every step enters two."""

  __slots__ = ('_activity', '_previous', '_recorder')

  def __init__(self, recorder: Recorder, activity: str):
    self._recorder = recorder
    self._activity = activity

  def __enter__(self) -> None:
    self._previous = self._recorder._switch(self._activity)

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    self._recorder._switch(self._previous)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput:
  """The wall time of a job by activity."""

  # Seconds by activity; they sum to `wall_secs`.
  seconds: Mapping[str, float]
  # From the start of the first process to the last record, without the time
  # between the end of a finished job and its next start.
  wall_secs: float
  # Number of processes.
  attempts: int

  @property
  def share(self) -> float:
    """The share of the time spent on steps that were not lost."""
    return self.seconds[STEP] / self.wall_secs if self.wall_secs else 0.0


def read(path: storage.PathLike) -> list[Record]:
  """Returns the records of a file; those of a running job so far."""
  return jsonl.read(path, _parse)


def summarize(records: Sequence[Record]) -> Goodput | None:
  """Returns the goodput of a job from its records; None without records."""
  attempts = _by_attempt(records)
  return _of_attempts(attempts) if attempts else None


def _of_attempts(attempts: Sequence[Sequence[Record]]) -> Goodput:
  seconds: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
  previous: Record | None = None
  for i, attempt in enumerate(attempts):
    last = attempt[-1]
    if previous and not previous.get('finished'):
      # Clocks may be set back; a restart takes no negative time.
      seconds[RESTART] += max(0.0, last['began'] - previous['time'])
    previous = last
    lost = _lost_seconds(attempt, attempts[i + 1 :])
    for activity, spent in last['seconds'].items():
      seconds[activity] += spent - lost.get(activity, 0.0)
    seconds[LOST] += sum(lost.values())
  return Goodput(
    seconds=seconds, wall_secs=sum(seconds.values()), attempts=len(attempts)
  )


def summary_line(goodput: Goodput) -> str:
  """Returns `goodput 93.1%  step 12m05s  compile 20s  start 9s  (2 starts)`."""
  parts = [
    f'{activity} {progress.short_time(spent)}'
    for activity, spent in goodput.seconds.items()
    if spent >= _MIN_SHOWN_SECS
  ]
  if goodput.attempts > 1:
    parts.append(f'({goodput.attempts} starts)')
  return '  '.join([f'goodput {100 * goodput.share:.1f}%', *parts])


def _parse(value: Any) -> Record:
  """Returns a record of the file; raises TypeError or KeyError otherwise."""
  number = side_files.NUMBER
  side_files.check_fields(
    value,
    {
      'attempt': int,
      'began': number,
      'time': number,
      'step': (int, type(None)),
      'seconds': dict,
    },
  )
  seconds = value['seconds']
  side_files.check_fields(seconds, dict.fromkeys(seconds, number))
  if unknown := seconds.keys() - set(ACTIVITIES):
    raise KeyError(unknown.pop())
  if value['step'] is None and value.keys() & {'resumed', 'saved'}:
    raise TypeError('a saved step is None')
  return value


def _by_attempt(records: Sequence[Record]) -> list[list[Record]]:
  """Returns the records of each process, in the order of the processes."""
  attempts: dict[int, list[Record]] = {}
  for record in records:
    attempts.setdefault(record['attempt'], []).append(record)
  return [attempts[index] for index in sorted(attempts)]


def _lost_seconds(
  attempt: Sequence[Record], later_attempts: Sequence[Sequence[Record]]
) -> dict[str, float]:
  """Returns the seconds of a process on steps that a later one repeats."""
  resumed_step = min(_resumed_steps(later_attempts), default=None)
  if resumed_step is None:
    return {}
  saved = next(_saved_records(attempt, resumed_step), None)
  if saved and saved['step'] == attempt[-1]['step'] == resumed_step:
    # No step is repeated: the process wrote this checkpoint, evaluated, ended.
    return {}
  # Without a checkpoint of its own a process loses all its steps.
  before = saved['seconds'] if saved else {}
  after = attempt[-1]['seconds']
  return {a: after.get(a, 0.0) - before.get(a, 0.0) for a in _STEP_ACTIVITIES}


def _resumed_steps(attempts: Sequence[Sequence[Record]]) -> Iterator[int]:
  for attempt in attempts:
    for record in attempt:
      if record.get('resumed') and record['step'] is not None:
        yield record['step']


def _saved_records(attempt: Sequence[Record], step: int) -> Iterator[Record]:
  """Yields, newest first, the records at which all steps were saved."""
  for record in reversed(attempt):
    is_marked = record.get('saved') or record.get('resumed')
    saved_step = record['step']
    if is_marked and saved_step is not None and saved_step <= step:
      yield record
