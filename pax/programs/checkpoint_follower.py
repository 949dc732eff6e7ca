# SPDX-License-Identifier: Apache-2.0
"""Sources of states to evaluate: one state, chosen or new checkpoints."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
from absl import logging

from pax import io_utils, tasks_lib, train_states
from pax.checkpoints import paths, reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.types import CheckpointError
from pax.files import storage
from pax.programs.metric_accumulator import (
  broadcast_from_first_process,
  is_set_on_all_processes,
)
from pax.programs.stopping.preemption import PreemptionHandler

TrainState = train_states.TrainState

_FIRST_POLL_SECS = 0.1
_LAST_POLL_SECS = 2.0
# Longest time until all processes see a checkpoint that process 0 sees.
_LATE_SECS = 60.0
# Broadcast instead of a step: no new checkpoint yet, and no more to come.
_NO_CHECKPOINT, _NO_MORE = -1, -2


class StateSource(Protocol):
  """The states that a job evaluates."""

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    """Yields (step, state, whether it is the last)."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateReader:
  """Reads the variables of a checkpoint, or their moving averages."""

  # Shapes and shardings of the full train state; arrays where
  # `use_fallback` of a transformation may keep a fresh value.
  state: TrainState
  # Whether the optimizer's averages (EMA) replace the variables.
  use_ema: bool
  # `task.train.restore_transformations`, built.
  restore_transformations: Mapping[str, Any] | None = None

  def read(self, path: storage.Path) -> TrainState:
    """Returns the eval state of the checkpoint at `path`.

    A checkpoint without optimizer states, which was converted from another one,
    has no averages besides its variables.
    """
    checkpoint = CheckpointReader(path)
    use_ema = self.use_ema and checkpoint.has_opt_states
    if self.use_ema and not use_ema:
      logging.info('%s has no optimizer states: its variables are used', path)
    names = reading.leaf_names(self.state)
    abstract, names = (
      tasks_lib.extract_ema(x) if use_ema else x.to_eval_state()
      for x in (self.state, names)
    )
    return reading.read_tree(
      checkpoint, abstract, names, self.restore_transformations
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedState:
  """A single state in memory."""

  state: TrainState

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    """Yields the state."""
    yield int(self.state.step), self.state, True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectedCheckpoints:
  """The checkpoints of given steps; the newest if there are none."""

  reader: StateReader
  directory: storage.Path
  steps: Sequence[int]

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    """Yields the states in the order of `steps`."""
    steps = list(self.steps) or [reading.find_checkpoint(self.directory)[0]]
    checkpoints = [
      reading.find_checkpoint(self.directory, step) for step in steps
    ]
    for i, (step, path) in enumerate(checkpoints):
      yield step, self.reader.read(path), i == len(steps) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointFollower:
  """The checkpoints of a training job, each once, as they appear.

  The first is the newest one, or the oldest if `from_oldest`, or the one at
  which this job was preempted. The last is that of `last_step`, or of the step
  at which training ended.
  """

  reader: StateReader
  # Directory of this job, which holds the step it was preempted at.
  job_log_dir: str
  # Directory of the training job, or of its checkpoints.
  directory: storage.Path
  mode: io_utils.EvaluationMode
  # The last step of training.
  last_step: int
  # Checkpoints of earlier steps are skipped, except that of the step at which
  # training ended.
  first_step: int
  # Whether to begin with the oldest of the others.
  from_oldest: bool = False
  # Seconds to wait for the first and for each later checkpoint; None: no limit.
  first_timeout_secs: float | None
  next_timeout_secs: float | None
  preemption: PreemptionHandler
  # Raises an error if the directory of this job is gone.
  check_job_dir: Callable[[], None] = lambda: None
  # Gets a line if there is no checkpoint at first.
  print_line: Callable[[str], None] = lambda line: None

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    """Yields the states in the order of their steps.

    Raises:
      CheckpointError: The directory is a checkpoint itself, or a file; or a
        process does not see the checkpoints in it.
    """
    reading.check_directory(self.directory)
    last_seen: int | None = None
    while (step := self._wait_for_checkpoint(last_seen)) is not None:
      last_seen = step
      is_last = self._is_last(step)
      state = self._read_on_all(step)
      if state is not None:
        yield step, state, is_last
      del state
      if is_last:
        return

  @property
  def _training_dir(self) -> storage.Path:
    """The directory in which the training job records its end."""
    is_inner = self.directory.name == paths.CHECKPOINTS
    return self.directory.parent if is_inner else self.directory

  def _read_on_all(self, step: int) -> TrainState | None:
    """Returns the state; None in all processes if training deleted it.

    A file system may show a checkpoint late, and training may delete it before
    one process has read it: all processes evaluate it, or none.

    Raises:
      CheckpointError: A process does not see what process 0 sees.
    """
    start = time.monotonic()
    state = self._read(step)
    while not is_set_on_all_processes(state is not None):
      is_there = step in reading.checkpoint_steps(self.directory)
      if not broadcast_from_first_process(int(is_there)):
        return None
      if (
        broadcast_from_first_process(int(time.monotonic() - start)) > _LATE_SECS
      ):
        raise CheckpointError(self._absence_message(step, state))
      self.preemption.raise_if_requested()
      self.preemption.sleep(_LAST_POLL_SECS)
      state = self._read(step) if state is None else state
    return state

  def _absence_message(self, step: int, state: TrainState | None) -> str:
    who = 'another process'
    if state is None:
      who = f'process {jax.process_index()} (host {socket.gethostname()})'
    return (
      f'{who} does not see the checkpoint of step {step} in {self.directory},'
      ' which process 0 sees; all processes need one directory of checkpoints,'
      ' on a shared file system or in a bucket'
    )

  def _read(self, step: int) -> TrainState | None:
    """Returns the state; None if training deleted its checkpoint."""
    path = reading.checkpoint_steps(self.directory).get(step)
    if not path:
      return None
    try:
      return self.reader.read(path)
    except (OSError, ValueError):
      if path.exists():
        raise
    logging.warning('Checkpoint %s was deleted before it was read', path)
    return None

  def _wait_for_checkpoint(self, last_seen: int | None) -> int | None:
    """Returns the next step to evaluate; None if there is none to come.

    Raises:
      ValueError: The wait exceeded its timeout.
    """
    is_first = last_seen is None
    timeout = self.first_timeout_secs if is_first else self.next_timeout_secs
    start, pause = time.monotonic(), _FIRST_POLL_SECS
    while True:
      self.preemption.raise_if_requested()
      self.check_job_dir()
      step = broadcast_from_first_process(self._poll(last_seen))
      if step == _NO_MORE:
        return None
      if step != _NO_CHECKPOINT:
        return step
      if timeout is not None and time.monotonic() - start > timeout:
        raise ValueError(self._timeout_message(last_seen, timeout))
      if is_first and pause == _FIRST_POLL_SECS:
        limit = '' if timeout is None else f', for at most {timeout:g} s'
        self.print_line(
          f'waiting for a {self._wanted(last_seen)} in {self.directory}{limit}'
        )
      self.preemption.sleep(pause)
      pause = min(2 * pause, _LAST_POLL_SECS)

  def _poll(self, last_seen: int | None) -> int:
    """Returns the next step, _NO_CHECKPOINT or _NO_MORE."""
    # Read before the checkpoints: training records its end after the last.
    end = io_utils.training_end(self._training_dir)
    first_step = self.first_step if end is None else min(self.first_step, end)
    step = self._next_step(last_seen, first_step)
    if step is not None:
      return step
    has_ended = end is not None
    return _NO_MORE if has_ended and last_seen is not None else _NO_CHECKPOINT

  def _next_step(self, last_seen: int | None, first_step: int) -> int | None:
    steps = [
      step
      for step in reading.checkpoint_steps(self.directory)
      if step >= first_step
    ]
    if last_seen is not None:
      return min((step for step in steps if step > last_seen), default=None)
    unfinished = io_utils.unfinished_step(self.job_log_dir, self.mode)
    if unfinished in steps:
      return unfinished
    return (min if self.from_oldest else max)(steps, default=None)

  def _is_last(self, step: int) -> bool:
    end = io_utils.training_end(self._training_dir)
    is_last = step >= self.last_step or (end is not None and step >= end)
    return bool(broadcast_from_first_process(int(is_last)))

  def _wanted(self, last_seen: int | None) -> str:
    if last_seen is not None:
      return f'checkpoint after step {last_seen}'
    if self.first_step:
      return f'checkpoint of step {self.first_step} or later'
    return 'checkpoint'

  def _timeout_message(self, last_seen: int | None, timeout: float) -> str:
    flag = 'first' if last_seen is None else 'next'
    return (
      f'no {self._wanted(last_seen)} appeared in {self.directory} within'
      f' {timeout:g} s; check that the training job is alive, or increase'
      f' --{flag}_checkpoint_timeout_secs'
    )
