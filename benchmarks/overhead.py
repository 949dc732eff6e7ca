# SPDX-License-Identifier: Apache-2.0
"""Time per step outside of the jitted function, in the real training program.

    python -m benchmarks.overhead

`framework`: the model is so small that its step takes microseconds. The
program's time per step, less that of calling the same compiled step in a bare
loop, is what the loop, the input, the ledger and the checkpointer cost, with
summaries off and as they usually are.

`summaries`: a model of a laptop's size with all its summaries written at every
step, against none at all, in turns.
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
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import measure

# Steps that are averaged; the fastest block is free of other processes.
_BLOCK = 100
_LARGE_BLOCK = 10


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--steps', type=int, default=3000)
  parser.add_argument('--large_steps', type=int, default=40)
  parser.add_argument('--rounds', type=int, default=2)
  options = parser.parse_args()
  measure.on_cpu_devices(1)
  _report_framework(options.steps)
  _report_summaries(options.large_steps, options.rounds)


def _report_framework(steps: int) -> None:
  """One line: the program with summaries off and on, and the bare loop."""
  name = 'benchmarks.experiments.LmNothing'
  off, bare = _measure(name, steps, summaries=False, bare_loop=True)
  usual, _ = _measure(name, steps, summaries=True)
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


def _report_summaries(steps: int, rounds: int) -> None:
  """One line: what summaries at every step cost, in percent."""
  name = 'benchmarks.experiments.Lm4x256Spmd'
  settings = ('task.train.summary_interval_steps=1',)
  found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
  for _ in range(rounds):
    for summaries in found:
      measured, _ = _measure(
        name, steps, summaries=summaries, settings=settings, block=_LARGE_BLOCK
      )
      found[summaries].append(measured)
  off, on = (
    min(one['min_ms'] for one in found[summaries]) for summaries in found
  )
  measure.report(
    'overhead',
    {
      'what': 'summaries at every step',
      'cost_percent': round(100 * (on / off - 1), 2),
      'off': found[False],
      'every_step': found[True],
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

  def per_step(self, block: int) -> dict[str, float]:
    """Returns milliseconds per step over blocks, the first steps left out."""
    skipped = min(5 * _BLOCK, len(self.times) // 4)
    blocks = self.times[skipped::block]
    seconds = [
      (b - a) / block for a, b in zip(blocks[:-1], blocks[1:], strict=True)
    ]
    return {
      'median_ms': round(1e3 * statistics.median(seconds), 4),
      'min_ms': round(1e3 * min(seconds), 4),
    }


def _measure(
  name: str,
  steps: int,
  *,
  summaries: bool,
  settings: Sequence[str] = (),
  bare_loop: bool = False,
  block: int = _BLOCK,
) -> tuple[dict[str, float], dict[str, float]]:
  """Returns milliseconds per step of the program and of the bare loop."""
  from pax.programs import interrupts, train_program
  from pax.programs import train as train_lib
  from pax.runner import build
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
    with interrupts.Interrupts() as signals:
      with build.build(options, build.plan(options), signals) as run:
        program = Recorded()
        train_lib.train(dataclasses.replace(run, train_program=program))
  bare = _bare_loop(run, steps) if bare_loop else None
  recorded = program._compiled_step.per_step(block)
  return recorded, bare.per_step(block) if bare else {}


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
