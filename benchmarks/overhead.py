# SPDX-License-Identifier: Apache-2.0
"""Time per step outside of the jitted function, in the real training program.

    python -m benchmarks.overhead

The model is so small that its step takes microseconds. The program's time per
step, less that of calling the same compiled step in a bare loop, is what the
loop, the input, the summaries and the checkpointer cost.
"""

# bazel: deps=//benchmarks:experiments
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure

# Steps that are averaged; the fastest block is free of other processes.
_BLOCK = 100


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--steps', type=int, default=3000)
  steps = parser.parse_args().steps
  measure.on_cpu_devices(1)
  with tempfile.TemporaryDirectory() as job_log_dir:
    program, bare = _measure(job_log_dir, steps)
  measure.report(
    'overhead',
    {
      'overhead_ms': round(program['min_ms'] - bare['min_ms'], 4),
      'overhead_median_ms': round(program['median_ms'] - bare['median_ms'], 4),
      'program': program,
      'bare_loop': bare,
      'steps': steps,
    },
  )


class _Recorder:
  """A step that keeps the time of each call."""

  def __init__(self, step: Callable[..., Any]):
    self._step = step
    self.times: list[float] = []

  def __call__(self, *args: Any) -> Any:
    self.times.append(time.perf_counter())
    return self._step(*args)

  def per_step(self) -> dict[str, float]:
    """Returns milliseconds per step over blocks, the first ones left out."""
    blocks = self.times[5 * _BLOCK :: _BLOCK]
    seconds = [
      (b - a) / _BLOCK for a, b in zip(blocks[:-1], blocks[1:], strict=True)
    ]
    return {
      'median_ms': round(1e3 * statistics.median(seconds), 4),
      'min_ms': round(1e3 * min(seconds), 4),
    }


def _measure(
  job_log_dir: str, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
  """Returns milliseconds per step of the program and of the bare loop."""
  import jax

  from pax.programs import interrupts
  from pax.programs import train as train_program
  from pax.runner import build
  from pax.runner.options import RunOptions

  options = RunOptions(
    exp='benchmarks.experiments.LmNothing',
    job_log_dir=job_log_dir,
    set=(f'task.train.num_train_steps={steps}',),
  )
  with interrupts.Interrupts() as signals:
    with build.build(options, build.plan(options), signals) as run:
      program = _Recorder(run.train_step)
      train_program.train(dataclasses.replace(run, train_step=program))
  bare = _Recorder(run.train_step)
  key = jax.random.key(0)
  state = run.partitioner.initialize(key)
  batch = run.partitioner.put_batch(run.train_input.get_next())
  for _ in range(steps):
    state, output = bare(state, batch, key)
    output.loss.block_until_ready()
  return program.per_step(), bare.per_step()


if __name__ == '__main__':
  main()
