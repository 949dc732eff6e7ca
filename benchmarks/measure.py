# SPDX-License-Identifier: Apache-2.0
"""Batches, alternating timing and JSON output of the benchmarks."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# `bazel run` sets the path of the sources; the running files are copies.
_TREE = os.environ.get(
  'BUILD_WORKSPACE_DIRECTORY', pathlib.Path(__file__).parents[1]
)
RESULTS = pathlib.Path(_TREE) / 'benchmarks' / 'results'


def on_cpu_devices(count: int) -> None:
  """Simulates `count` CPU devices; call it before JAX is imported."""
  flag = f'--xla_force_host_platform_device_count={count}'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')


def random_lm_batch(rows: int, length: int, vocab: int) -> dict[str, Any]:
  """Returns a packed batch of random tokens, two segments per row."""
  import numpy as np  # Slow; not every benchmark needs it.

  rng = np.random.default_rng(0)
  ids = rng.integers(1, vocab, (rows, length + 1), dtype=np.int32)
  first = length // 3
  segments = np.where(np.arange(length) < first, 1, 2).astype(np.int32)
  positions = np.concatenate([np.arange(first), np.arange(length - first)])
  return {
    'ids': ids[:, :-1],
    'labels': ids[:, 1:],
    'paddings': np.zeros((rows, length), np.float32),
    'weights': np.ones((rows, length), np.float32),
    'segment_ids': np.tile(segments, (rows, 1)),
    'segment_pos': np.tile(positions.astype(np.int32), (rows, 1)),
  }


@dataclasses.dataclass(frozen=True)
class Times:
  """Wall time and CPU time of all threads of each call, in seconds."""

  wall: list[float] = dataclasses.field(default_factory=list)
  cpu: list[float] = dataclasses.field(default_factory=list)


def alternate(
  runs: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, Times]:
  """Returns the times of all calls; each round calls every function once.

  A function must return when its work is complete. Other load on the machine
  then affects all functions alike; the CPU time hardly depends on it.
  """
  times = {name: Times() for name in runs}
  for _ in range(rounds):
    for name, run in runs.items():
      wall, cpu = time.perf_counter(), time.process_time()
      run()
      times[name].wall.append(time.perf_counter() - wall)
      times[name].cpu.append(time.process_time() - cpu)
  return times


def alternate_programs(
  functions: Mapping[str, Callable[..., Any]],
  operands: Sequence[Any],
  rounds: int,
) -> tuple[dict[str, Any], dict[str, Times]]:
  """Returns the functions, compiled, and the times of all their calls.

  Args:
    functions: each takes the operands.
    operands: arrays.
    rounds: number of calls of each function, after one that is not measured.
  """
  import jax  # `on_cpu_devices` comes before it.

  programs = {
    name: jax.jit(function).lower(*operands).compile()
    for name, function in functions.items()
  }
  runs = {
    name: lambda program=program: jax.block_until_ready(program(*operands))
    for name, program in programs.items()
  }
  alternate(runs, 1)
  return programs, alternate(runs, rounds)


def summary(seconds: list[float]) -> dict[str, float]:
  """Returns median, 90th percentile and minimum, in milliseconds."""
  ordered = sorted(seconds)
  return {
    'median_ms': round(1e3 * statistics.median(ordered), 3),
    'p90_ms': round(1e3 * ordered[int(0.9 * (len(ordered) - 1))], 3),
    'min_ms': round(1e3 * ordered[0], 3),
  }


def ratio(ours: list[float], theirs: list[float]) -> float:
  """Returns the median over rounds of `ours / theirs`."""
  return round(
    statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 4
  )


def temp_bytes(program: Any) -> int | None:
  """Returns the bytes of XLA's buffers without arguments and results.

  None where the backend does not analyze the memory of a jax.stages.Compiled.
  """
  analysis = program.memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes


def report(name: str, line: Mapping[str, Any]) -> None:
  """Prints a line of JSON and appends it to the results of today."""
  text = json.dumps({'benchmark': name, **line})
  print(text, flush=True)
  today = datetime.date.today().isoformat()
  with open(RESULTS / f'{today}-{name}.jsonl', 'a') as file:
    file.write(text + '\n')
