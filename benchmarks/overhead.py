# SPDX-License-Identifier: Apache-2.0
"""Overhead of the training loop outside of the compiled step.

    python -m benchmarks.overhead

`framework`: the step of the model takes microseconds. The overhead is the time
per step minus that of a bare loop over the same compiled step: loop, input,
goodput recorder and checkpointer, without and with summaries.

`summaries`: a larger model in one run, with all summaries at every step and
without summaries in alternating blocks of steps.
"""

# bazel: deps=//benchmarks:experiments
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import measure

# Steps per block; the fastest block has the least interference.
_BLOCK = 100
_LARGE_BLOCK = 5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--steps', type=int, default=3000)
  parser.add_argument('--large_steps', type=int, default=200)
  options = parser.parse_args()
  if options.steps < 4 * _BLOCK or options.large_steps < 4 * _LARGE_BLOCK:
    parser.error(
      f'--steps must be at least {4 * _BLOCK} and --large_steps '
      f'{4 * _LARGE_BLOCK}: the benchmark measures blocks of steps'
    )
  measure.on_cpu_devices(1)
  _report_framework(options.steps)
  _report_summaries(options.large_steps)


def _report_framework(steps: int) -> None:
  """Reports the program with and without summaries, and the bare loop."""
  name = 'benchmarks.experiments.LmNothing'
  recorded, run = _measure(name, steps, summaries=False)
  off, bare = recorded.per_step(), _bare_loop(run, steps).per_step()
  usual = _measure(name, steps)[0].per_step()
  measure.report(
    'overhead',
    {
      'what': 'framework',
      'overhead_ms': round(off['min_ms'] - bare['min_ms'], 4),
      'overhead_median_ms': round(off['median_ms'] - bare['median_ms'], 4),
      'with_summaries_ms': round(usual['min_ms'] - bare['min_ms'], 4),
      'program': off,
      'program_with_summaries': usual,
      'bare_loop': bare,
      'steps': steps,
    },
  )


def _report_summaries(steps: int) -> None:
  """Reports the cost of summaries at every step, in percent.

  One run writes summaries in every second block of steps; each such block is
  compared with the mean of its neighbors.
  """
  name = 'benchmarks.experiments.Lm4x256Spmd'
  settings = ('task.train.summary_interval_steps=1', 'MAX_SEQ_LEN=64')
  times, _ = _measure(name, steps, settings, every_other=_LARGE_BLOCK)
  wall, cpu = times.blocks(_LARGE_BLOCK)
  measure.report(
    'overhead',
    {
      'what': 'summaries at every step',
      'cost_percent': _cost_percent(wall),
      'cpu_cost_percent': _cost_percent(cpu),
      'step_ms': round(1e3 * statistics.median(wall), 2),
      'block': _LARGE_BLOCK,
      'steps': steps,
    },
  )


def _cost_percent(blocks: Sequence[float]) -> float:
  """Returns the median cost of odd blocks relative to their neighbors."""
  ratios = [
    2 * blocks[i] / (blocks[i - 1] + blocks[i + 1])
    for i in range(1, len(blocks) - 1, 2)
  ]
  return round(100 * (statistics.median(ratios) - 1), 2)


class _Recorder:
  """A step that records the time of each call."""

  def __init__(self, step: Callable[..., Any]):
    self._step = step
    self.wall: list[float] = []
    self.cpu: list[float] = []

  def __call__(self, *args: Any) -> Any:
    self.wall.append(time.perf_counter())
    self.cpu.append(time.process_time())
    return self._step(*args)

  def blocks(self, block: int) -> tuple[list[float], list[float]]:
    """Returns wall and CPU seconds per step of each block."""
    return _per_step(self.wall, block), _per_step(self.cpu, block)

  def per_step(self) -> dict[str, float]:
    """Returns milliseconds per step over blocks, without the first quarter."""
    seconds = _per_step(self.wall[len(self.wall) // 4 :], _BLOCK)
    return {
      'median_ms': round(1e3 * statistics.median(seconds), 4),
      'min_ms': round(1e3 * min(seconds), 4),
    }


def _per_step(times: Sequence[float], block: int) -> list[float]:
  ends = times[::block]
  return [(b - a) / block for a, b in itertools.pairwise(ends)]


class _Gate:
  """A writer that drops the summaries of every second block of steps."""

  def __init__(self, writer: Any, block: int):
    self._writer = writer
    self._block = block

  def write(self, step: int, *args: Any, **kwargs: Any) -> None:
    if step // self._block % 2:
      self._writer.write(step, *args, **kwargs)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._writer, name)


def _measure(
  name: str,
  steps: int,
  settings: Sequence[str] = (),
  *,
  summaries: bool = True,
  every_other: int | None = None,
) -> tuple[_Recorder, Any]:
  """Returns the times of the steps of the program, and the job."""
  from pax.programs import train as train_lib
  from pax.programs import train_program
  from pax.programs.stopping import preemption
  from pax.runner import build_train, job_dir, job_setup
  from pax.runner.options import RunOptions

  class Recorded(train_program.SingleTaskTrainProgram):
    """Records the time of each step."""

    def setup(self, *args: Any, **kwargs: Any) -> None:
      super().setup(*args, **kwargs)
      self.recorder = _Recorder(self._partitioner.train_step())
      # The program calls the recorder instead of its compiled step.
      self._compiled_step = self.recorder  # type: ignore[assignment]

  with tempfile.TemporaryDirectory() as job_log_dir:
    options = RunOptions(
      exp=name,
      job_log_dir=job_log_dir,
      set=(f'task.train.num_train_steps={steps}', *settings),
      enable_summary_writer=summaries,
    )
    with preemption.PreemptionHandler() as signals:
      with (
        job_dir.open_job_dir(job_log_dir, 0) as directory,
        build_train.build(
          options, job_setup.resolve(options), directory, signals
        ) as run,
      ):
        program = Recorded()
        writer = _Gate(run.writer, every_other) if every_other else run.writer
        train_lib.train(
          dataclasses.replace(run, train_program=program, writer=writer)
        )
  return program.recorder, run


def _bare_loop(run: Any, steps: int) -> _Recorder:
  """Calls the compiled step of a job in a bare loop."""
  import jax

  bare = _Recorder(run.partitioner.train_step())
  key = jax.random.key(0)
  state = run.partitioner.initialize(key)
  batch = run.partitioner.put_batch(run.train_input.get_next())
  for _ in range(steps):
    state, output = bare(state, batch, key)
    output.loss.block_until_ready()
  return bare


if __name__ == '__main__':
  main()
