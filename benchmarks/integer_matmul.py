# SPDX-License-Identifier: Apache-2.0
"""Time of a product of few rows with a weight of integers, relative to XLA's.

    python -m benchmarks.integer_matmul --rounds=15

A round runs both once. `ratio` is the median over rounds of the time relative
to XLA's, `cpu_ratio` that of the CPU time of all threads. Formats are `int8`,
and int4 packed into `int8x2` or `int32x8`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks import measure
from praxis.kernels import integer_matmul

# Bits of an integer, and the type that stores one or more of them.
_FORMATS = {
  'int8': (8, jnp.int8),
  'int8x2': (4, jnp.int8),
  'int32x8': (4, jnp.int32),
}
_SIZES = ((256, 256), (1024, 1024), (2048, 8192))


def main() -> None:
  args = _parser().parse_args()
  for depth, columns in _SIZES:
    for rows in args.rows:
      for dtype in args.dtypes:
        for format_name in args.formats:
          shape = (rows, depth, columns)
          line = _measure(shape, dtype, format_name, args.rounds)
          measure.report('integer_matmul', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=int, nargs='+', default=(1, 4, 16))
  parser.add_argument('--dtypes', nargs='+', default=('float32', 'bfloat16'))
  parser.add_argument('--formats', nargs='+', default=tuple(_FORMATS))
  parser.add_argument('--rounds', type=int, default=15)
  return parser


def _measure(
  shape: tuple[int, int, int], dtype: str, format_name: str, rounds: int
) -> dict[str, object]:
  rows, depth, columns = shape
  keys = jax.random.split(jax.random.key(0))
  x = jax.random.normal(keys[0], (rows, depth)).astype(dtype)
  bits, stored = _FORMATS[format_name]
  elements = depth // integer_matmul.rows_per_element(stored, bits)
  limits = jnp.iinfo(stored)
  w = jax.random.randint(
    keys[1], (elements, columns), limits.min, limits.max, stored
  )
  programs: dict[str, Callable[..., jax.Array]] = {
    'native': integer_matmul.integer_matmul,
    'xla': integer_matmul.reference,
  }
  # Several calls, so that a round takes longer than the clock's noise.
  calls = max(1, 2**24 // (depth * columns))
  runs = {
    name: functools.partial(
      _run,
      jax.jit(fn, static_argnums=2).lower(x, w, bits).compile(),
      x,
      w,
      calls,
    )
    for name, fn in programs.items()
  }
  measure.alternate(runs, 1)
  times = measure.alternate(runs, rounds)
  return dict(
    shape=shape,
    dtype=dtype,
    format=format_name,
    ratio=measure.ratio(times['native'].wall, times['xla'].wall),
    cpu_ratio=measure.ratio(times['native'].cpu, times['xla'].cpu),
    **measure.summary(times['native'].wall),
  )


def _run(program: jax.stages.Compiled, x: jax.Array, w: jax.Array, calls: int):
  results = [program(x, w) for _ in range(calls)]
  jax.block_until_ready(results)


if __name__ == '__main__':
  main()
