# SPDX-License-Identifier: Apache-2.0
"""Jobs that evaluate and decode the checkpoints of another job."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from absl import logging

from pax import io_utils, partitioning, summaries, tasks_lib, train_states
from pax.checkpoints import paths, reading
from pax.programs import early_stopping as stopping_lib
from pax.programs import eval_runner as passes_lib
from pax.programs import metric_accumulator
from pax.programs import preemption as interrupts_lib
from pax.programs.run import Outcome

TrainState = train_states.TrainState

_FIRST_POLL_SECS = 0.1
_LAST_POLL_SECS = 2.0
# In the place of a step: none so far, and none any more.
_NOTHING, _ENDED = -1, -2


class Source(Protocol):
  """Gives the states that a job evaluates."""

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    """Yields (step, state, whether it is the last)."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalJob:
  """One job that does not train, complete when it is constructed."""

  job_log_dir: str
  mode: io_utils.EvaluationMode
  # The task on its devices.
  partitioner: partitioning.Partitioner
  source: Source
  # What is evaluated and decoded.
  passes: passes_lib.Passes
  stopping: stopping_lib.Stopping
  writer: summaries.Writer
  progress: summaries.Progress

  def run(self) -> Outcome:
    """Evaluates and decodes each state of the source."""
    undone = io_utils.undone_step(self.job_log_dir, self.mode)
    try:
      for step, state, is_last in self.source.states():
        found = self._look_at(step, state, is_resumed=step == undone)
        # Makes room for the next.
        del state
        if self.stopping.should_stop(step, is_last, found):
          return Outcome.STOPPED_EARLY
    except interrupts_lib.StoppedError:
      return Outcome.PREEMPTED
    finally:
      self.progress.close()
      self.passes.shutdown()
      self.writer.close()
    return Outcome.DONE

  def _look_at(
    self, step: int, state: TrainState, *, is_resumed: bool
  ) -> stopping_lib.Found:
    def is_done(mode: io_utils.EvaluationMode, name: str) -> bool:
      """Whether this job had done that when it was stopped in this step."""
      file = io_utils.output_file(self.job_log_dir, mode, name, step)
      # The last one that is written of the two.
      last = file.with_suffix('.jsonl')
      written = is_resumed and io_utils.is_written_since_undone(
        self.job_log_dir, self.mode, last, step
      )
      return bool(metric_accumulator.agreed(int(written)))

    with io_utils.checkpoint_progress(self.job_log_dir, step, self.mode):
      decodes = self.passes.decode(state, step, is_done)
      evals = self.passes.evaluate(state, step, is_done)
      self.writer.flush()
    return stopping_lib.Found(evals=evals, decodes=decodes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateReader:
  """Reads of a checkpoint what evaluation needs: variables, or averages."""

  # The train state: shapes, or values where transformations keep fresh ones.
  whole: TrainState
  # Whether the averages of the optimizer take the place of the variables.
  use_ema: bool
  # `task.train.restore_transformations`, built.
  restore_transformations: Mapping[str, Any] | None = None

  def read(self, path: pathlib.Path) -> TrainState:
    abstract, names = self._wanted
    return reading.read_as(path, abstract, names, self.restore_transformations)

  @functools.cached_property
  def _wanted(self) -> tuple[Any, Any]:
    names = reading.leaf_names(self.whole)
    if self.use_ema:
      return tasks_lib.extract_ema(self.whole), tasks_lib.extract_ema(names)
    return self.whole.to_eval_state(), names.to_eval_state()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
  """A state that is at hand, once."""

  state: TrainState

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    yield int(self.state.step), self.state, True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
  """The checkpoints of certain steps, or the newest."""

  reader: StateReader
  directory: pathlib.Path
  steps: Sequence[int]

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    steps = list(self.steps) or [reading.find(self.directory)[0]]
    paths = [reading.find(self.directory, step)[1] for step in steps]
    for i, (step, path) in enumerate(zip(steps, paths, strict=True)):
      yield step, self.reader.read(path), i == len(steps) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Following:
  """The checkpoints of a training job, as they appear, each once.

  It begins with the newest, or with the one that this job was stopped in, and
  ends with that of the last step, or where training ended before.
  """

  reader: StateReader
  # Of this job, which notes where it is stopped.
  job_log_dir: str
  # Of the training job, or of its checkpoints.
  directory: pathlib.Path
  mode: io_utils.EvaluationMode
  # The step that training goes to, and from which on checkpoints count.
  last_step: int
  first_step: int
  # Seconds to wait for the first and for another checkpoint; None for ever.
  first_timeout_secs: float | None
  next_timeout_secs: float | None
  interrupts: interrupts_lib.Interrupts

  def states(self) -> Iterator[tuple[int, TrainState, bool]]:
    done: int | None = None
    while (step := self._wait_for_checkpoint(done)) is not None:
      done = step
      is_last = self._is_last(step)
      if (state := self._read(step)) is not None:
        yield step, state, is_last
      del state
      if is_last:
        return

  @property
  def _training_dir(self) -> pathlib.Path:
    """The training job tells there when it ends."""
    is_inner = self.directory.name == paths.CHECKPOINTS
    return self.directory.parent if is_inner else self.directory

  def _read(self, step: int) -> TrainState | None:
    """The state; None if the training job deleted it meanwhile."""
    path = reading.checkpoint_steps(self.directory).get(step)
    try:
      return self.reader.read(path) if path else None
    except (OSError, ValueError):
      if path.exists():
        raise
    logging.warning('Checkpoint %s was deleted before it was read', path)
    return None

  def _wait_for_checkpoint(self, done: int | None) -> int | None:
    """The next step to look at; None if there will be none.

    Raises:
      ValueError: it took too long.
    """
    timeout = (
      self.first_timeout_secs if done is None else self.next_timeout_secs
    )
    begun, pause = time.monotonic(), _FIRST_POLL_SECS
    while True:
      self.interrupts.check_batch()
      found = metric_accumulator.agreed(self._look(done))
      if found == _ENDED:
        return None
      if found != _NOTHING:
        return found
      if timeout is not None and time.monotonic() - begun > timeout:
        raise ValueError(_nothing_came(self.directory, done, timeout))
      time.sleep(pause)
      pause = min(2 * pause, _LAST_POLL_SECS)

  def _look(self, done: int | None) -> int:
    """The next step, or why there is none."""
    # Before looking: the last checkpoint is there when training has ended.
    is_ended = io_utils.training_end(self._training_dir) is not None
    found = self._next(done)
    if found is not None:
      return found
    return _ENDED if is_ended and done is not None else _NOTHING

  def _next(self, done: int | None) -> int | None:
    steps = [
      s
      for s in reading.checkpoint_steps(self.directory)
      if s >= self.first_step
    ]
    if done is not None:
      return min((s for s in steps if s > done), default=None)
    undone = io_utils.undone_step(self.job_log_dir, self.mode)
    return undone if undone in steps else max(steps, default=None)

  def _is_last(self, step: int) -> bool:
    end = io_utils.training_end(self._training_dir)
    is_last = step >= self.last_step or (end is not None and step >= end)
    return bool(metric_accumulator.agreed(int(is_last)))


def _nothing_came(
  directory: pathlib.Path, done: int | None, timeout: float
) -> str:
  what = 'checkpoint' if done is None else f'checkpoint after step {done}'
  flag = 'first' if done is None else 'next'
  return (
    f'no {what} appeared in {directory} within {timeout:g} s; see whether the'
    f' training job is alive, or wait longer with'
    f' --{flag}_checkpoint_timeout_secs'
  )
