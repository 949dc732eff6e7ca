# SPDX-License-Identifier: Apache-2.0
"""Time of a product of few rows with a weight of int8, relative to XLA's.

    python -m benchmarks.int8_matmul --rounds=15

A round runs both once. `ratio` is the median over rounds of the time relative
to XLA's, `cpu_ratio` that of the CPU time of all threads.
"""

from __future__ import annotations

import argparse
import functools

import jax
import jax.numpy as jnp

from benchmarks import measure
from praxis.kernels import int8_matmul

_SIZES = ((256, 256), (1024, 1024), (2048, 8192))


def main() -> None:
  args = _parser().parse_args()
  for depth, columns in _SIZES:
    for rows in args.rows:
      for dtype in args.dtypes:
        line = _measure((rows, depth, columns), dtype, args.rounds)
        measure.report('int8_matmul', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=int, nargs='+', default=(1, 4, 16))
  parser.add_argument('--dtypes', nargs='+', default=('float32', 'bfloat16'))
  parser.add_argument('--rounds', type=int, default=15)
  return parser


def _measure(
  shape: tuple[int, int, int], dtype: str, rounds: int
) -> dict[str, object]:
  rows, depth, columns = shape
  keys = jax.random.split(jax.random.key(0))
  x = jax.random.normal(keys[0], (rows, depth)).astype(dtype)
  w = jax.random.randint(keys[1], (depth, columns), -127, 128, jnp.int8)
  programs = {
    'native': int8_matmul.int8_matmul,
    'xla': int8_matmul.reference,
  }
  # Several calls, so that a round takes longer than the clock's noise.
  calls = max(1, 2**24 // w.size)
  runs = {
    name: functools.partial(
      _run, jax.jit(fn).lower(x, w).compile(), x, w, calls
    )
    for name, fn in programs.items()
  }
  measure.alternate(runs, 1)
  times = measure.alternate(runs, rounds)
  return dict(
    shape=shape,
    dtype=dtype,
    ratio=measure.ratio(times['native'].wall, times['xla'].wall),
    cpu_ratio=measure.ratio(times['native'].cpu, times['xla'].cpu),
    **measure.summary(times['native'].wall),
  )


def _run(program: jax.stages.Compiled, x: jax.Array, w: jax.Array, calls: int):
  results = [program(x, w) for _ in range(calls)]
  jax.block_until_ready(results)


if __name__ == '__main__':
  main()
