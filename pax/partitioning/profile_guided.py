# SPDX-License-Identifier: Apache-2.0
"""Profile-guided latency estimation (PGLE) of a train step on GPUs.

XLA's latency-hiding scheduler overlaps collectives with computation by
estimates of their durations. With a profile of the step it uses measured ones.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental import profiler as jax_profiler

from pax import train_states
from pax.files import atomic_file, side_files, working_copy
from pax.partitioning.partitioned_step import PartitionedStep
from pax.steps import Batch

TrainState = train_states.TrainState
Run = Callable[[TrainState, Batch, jax.Array], Any]

# The profile in the job directory, a serialized ProfiledInstructionsProto.
PROFILE_FILE = 'profile.pb'
# Steps that are timed before and after, and steps in the trace.
NUM_TIMED = 5
NUM_TRACED = 3
# The steps after which the manual workflow is done; each of its three
# executables first runs one step that is not timed.
NUM_STEPS = 3 + 2 * NUM_TIMED + NUM_TRACED

# Traces of GPUs do not contain the single instructions of command buffers.
_PROFILED_OPTIONS: dict[str, str | bool] = {'xla_gpu_enable_command_buffer': ''}


def run_automatically(step: PartitionedStep) -> None:
  """Makes JAX profile the first calls of the step and compile it again.

  JAX does it for functions of `jax.jit`, not for executables, so that the step
  is compiled by its first call. JAX_PGLE_PROFILING_RUNS and
  JAX_PGLE_AGGREGATION_PERCENTILE in the environment apply.

  Args:
    step: The step, which has not been called.
  """
  # The public option is that of all threads: JAX would profile functions of
  # several threads at a time, which is an error.
  from jax._src import config

  def run(state: TrainState, batch: Batch, key: jax.Array) -> Any:
    with config.enable_pgle(True):
      return step.dispatch(state, batch, key)

  step.set_run(run)


class ManualRecompilation:
  """Times and traces a step, compiles it with the profile, and times it again.

  The profile is stored; the next job of the directory starts with it.
  """

  def __init__(
    self,
    step: PartitionedStep,
    job_log_dir: str | pathlib.Path,
    report: Callable[[str], None],
    record_compiling: Callable[[], contextlib.AbstractContextManager[Any]],
    num_train_steps: int,
  ):
    """Reads the profile; all processes call it.

    Args:
      step: The step, which has not been called.
      job_log_dir: Directory of the profile.
      report: Receives the result as a line of text.
      record_compiling: Returns the context of a compilation.
      num_train_steps: The number of steps at the end of the job.
    """
    self._step = step
    self._path = pathlib.Path(job_log_dir) / PROFILE_FILE
    self._report = report
    self._record_compiling = record_compiling
    self._num_train_steps = num_train_steps
    profile = b''
    if jax.process_index() == 0 and self._path.exists():
      profile = self._path.read_bytes()
    self._profile = _broadcast(profile)

  def compile(self) -> None:
    """Compiles the step: with the stored profile, or to be profiled."""
    if self._profile:
      self._step.set_compiled(self._compile_with_profile())
      shown = working_copy.origin(self._path)
      self._report(f'PGLE: the step is compiled with {shown}')
      return
    calls = self._calls(self._step.compiled)

    def run(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      # The last one sets the run of the step.
      return next(calls)(state, batch, key)

    self._step.set_run(run)

  def _calls(self, estimated: jax.stages.Compiled) -> Iterator[Run]:
    """Yields the function that runs each call of the step."""
    before: list[float] = []
    after: list[float] = []

    def run_first(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      num_left = self._num_train_steps - int(state.step)
      if num_left < NUM_STEPS:
        self._report(
          f'PGLE: --pgle=manual takes {NUM_STEPS} steps, and this job has'
          f' {num_left}: it ends before step times are compared'
        )
      return estimated(state, batch, key)

    yield run_first
    for _ in range(NUM_TIMED):
      yield _timed(estimated, before)
    with self._record_compiling():
      profiled = self._step.lower().compile(_PROFILED_OPTIONS)
    yield profiled
    with tempfile.TemporaryDirectory() as folder:
      for i in range(NUM_TRACED):
        yield _traced(profiled, pathlib.Path(folder), f'{i}.xplane.pb')
      self._profile = _broadcast(_profiled_instructions(folder))
    del profiled
    if not self._profile:
      self._report(
        'PGLE: the traces have no instruction of a GPU (does another profiler'
        ' run?); training continues without a profile'
      )
      self._step.set_compiled(estimated)
      yield estimated
      return
    is_stored = self._store()
    with self._record_compiling():
      optimized = self._compile_with_profile()
    yield optimized
    for _ in range(NUM_TIMED - 1):
      yield _timed(optimized, after)
    self._step.set_compiled(optimized)

    def run_last(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      output = _timed(optimized, after)(state, batch, key)
      shown = working_copy.origin(self._path)
      later = f'{shown} is used from now on'
      if not is_stored:
        later = f'{shown} is not written: the next start profiles again'
      self._report(f'{_comparison(before, after)}; {later}')
      return output

    yield run_last

  def _store(self) -> bool:
    """Writes the profile in the first process; returns False if it cannot.

    The other processes compile with the profile, and wait for the first one.
    """
    if jax.process_index() != 0:
      return True
    with side_files.tolerate_errors(self._path):
      with atomic_file.open_atomic(self._path) as file:
        file.write(self._profile)
      return True
    return False

  def _compile_with_profile(self) -> jax.stages.Compiled:
    # Pass the content, not the path: the compilation cache compares the option,
    # and profiles of one path may differ. JAX annotates options without bytes.
    options: dict[str, Any] = {'fdo_profile': self._profile}
    return self._step.lower().compile(options)


def _comparison(before: list[float], after: list[float]) -> str:
  first, second = statistics.median(before), statistics.median(after)
  return (
    f'PGLE: {1e3 * first:.1f} ms a step before, {1e3 * second:.1f} ms after'
    f' ({100 * (second / first - 1):+.1f} %)'
  )


def _timed(run: Run, seconds: list[float]) -> Run:
  """Returns `run`, which waits for its step and appends its duration."""

  def timed(state: TrainState, batch: Batch, key: jax.Array) -> Any:
    jax.block_until_ready((state, batch))
    start = time.perf_counter()
    output = jax.block_until_ready(run(state, batch, key))
    seconds.append(time.perf_counter() - start)
    return output

  return timed


def _traced(run: Run, folder: pathlib.Path, name: str) -> Run:
  """Returns `run`, which writes a trace of its step in the first process.

  The other processes run the same program.
  """

  def traced(state: TrainState, batch: Batch, key: jax.Array) -> Any:
    jax.block_until_ready((state, batch))
    with tempfile.TemporaryDirectory() as log_dir:
      with _trace(log_dir):
        output = jax.block_until_ready(run(state, batch, key))
      for file in pathlib.Path(log_dir).glob('plugins/profile/*/*.xplane.pb'):
        file.rename(folder / name)
    return output

  return traced


@contextlib.contextmanager
def _trace(log_dir: str) -> Iterator[None]:
  """Traces the block in the first process, unless another trace is open."""
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      with contextlib.suppress(RuntimeError):
        stack.enter_context(jax.profiler.trace(log_dir))
    yield


def _profiled_instructions(folder: str) -> bytes:
  """Returns the durations of instructions in the traces; empty without any."""
  if not os.listdir(folder):
    return b''
  return jax_profiler.get_profiled_instructions_proto(folder)


def _broadcast(content: bytes) -> bytes:
  """Returns the content of the first process; all processes call it."""
  if jax.process_count() == 1:
    return content
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
  if not size:
    return b''
  padded = np.frombuffer(content.ljust(size, b'\0')[:size], np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()
