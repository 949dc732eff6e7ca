# SPDX-License-Identifier: Apache-2.0
"""Time per step outside of the jitted function, in the real training program.

    python -m benchmarks.overhead

`framework`: the model is so small that its step takes microseconds. The
program's time per step, less that of calling the same compiled step in a bare
loop, is what the loop, the input, the ledger and the checkpointer cost, with
summaries off and as they usually are.

`summaries`: a model of a laptop's size with all its summaries written at every
step, in turns with nothing written, within one run.
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

# Steps that are averaged; the fastest block is free of other processes.
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
      f'{4 * _LARGE_BLOCK}: times are taken over blocks of steps'
    )
  measure.on_cpu_devices(1)
  _report_framework(options.steps)
  _report_summaries(options.large_steps)


def _report_framework(steps: int) -> None:
  """One line: the program with summaries off and on, and the bare loop."""
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
  """One line: what summaries at every step cost, in percent.

  One run writes during every other block of steps; each block that writes is
  compared with the mean of the two beside it.
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
  """The median cost of the odd blocks over the means of their neighbours."""
  ratios = [
    2 * blocks[i] / (blocks[i - 1] + blocks[i + 1])
    for i in range(1, len(blocks) - 1, 2)
  ]
  return round(100 * (statistics.median(ratios) - 1), 2)


class _Recorder:
  """A step that keeps the time of each call."""

  def __init__(self, step: Callable[..., Any]):
    self._step = step
    self.wall: list[float] = []
    self.cpu: list[float] = []

  def __call__(self, *args: Any) -> Any:
    self.wall.append(time.perf_counter())
    self.cpu.append(time.process_time())
    return self._step(*args)

  def blocks(self, block: int) -> tuple[list[float], list[float]]:
    """Returns seconds per step of each block: passed, and used by threads."""
    return _per_step(self.wall, block), _per_step(self.cpu, block)

  def per_step(self) -> dict[str, float]:
    """Returns milliseconds per step over blocks, the first steps left out."""
    seconds = _per_step(self.wall[len(self.wall) // 4 :], _BLOCK)
    return {
      'median_ms': round(1e3 * statistics.median(seconds), 4),
      'min_ms': round(1e3 * min(seconds), 4),
    }


def _per_step(times: Sequence[float], block: int) -> list[float]:
  ends = times[::block]
  return [(b - a) / block for a, b in itertools.pairwise(ends)]


class _Gate:
  """A writer that passes on what is written in every other block of steps."""

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
  """Returns the times of the program's steps, and the run."""
  from pax.programs import preemption, train_program
  from pax.programs import train as train_lib
  from pax.runner import build_train
  from pax.runner.options import RunOptions

  class Recorded(train_program.SingleTaskTrainProgram):
    """Trains as ever, and keeps the time of each step."""

    def setup(self, *args: Any, **kwargs: Any) -> None:
      super().setup(*args, **kwargs)
      self._compiled_step = _Recorder(self._compiled_step)

  with tempfile.TemporaryDirectory() as job_log_dir:
    options = RunOptions(
      exp=name,
      job_log_dir=job_log_dir,
      set=(f'task.train.num_train_steps={steps}', *settings),
      enable_summary_writer=summaries,
    )
    with preemption.PreemptionHandler() as signals:
      with build_train.build(
        options, build_train.plan(options), signals
      ) as run:
        program = Recorded()
        writer = _Gate(run.writer, every_other) if every_other else run.writer
        train_lib.train(
          dataclasses.replace(run, train_program=program, writer=writer)
        )
  return program._compiled_step, run


def _bare_loop(run: Any, steps: int) -> _Recorder:
  """Calls the compiled step of a run, and nothing else."""
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
