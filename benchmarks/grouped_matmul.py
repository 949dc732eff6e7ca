# SPDX-License-Identifier: Apache-2.0
"""Time of the products of a mixture's rows with their experts' weights.

    python -m benchmarks.grouped_matmul --rounds=10

`grouped` is what Pax takes on the platform, `ragged_dot` XLA's own, `batched` a
product of equal groups, whose sizes the compiler knows. `gradient` has the
gradients of rows and weights too. A round runs each once. `ratio` is the median
over rounds of the time relative to `batched`. `temp_bytes` is XLA's buffer
assignment without arguments and results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from praxis.kernels import grouped_matmul

_Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def main() -> None:
  args = _parser().parse_args()
  for shape in args.shapes:
    rows, experts, dims, hidden = map(int, shape.split('x'))
    operands = _operands(rows, experts, dims, hidden, args.dtype)
    for step in args.steps:
      for line in _measure(operands, step, args.rounds):
        measure.report('grouped_matmul', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    '--shapes', nargs='+', default=('1024x8x256x512',),
    help='rows x experts x inputs x outputs',
  )  # fmt: skip
  parser.add_argument('--dtype', default='bfloat16')
  parser.add_argument('--steps', nargs='+', default=('forward', 'gradient'))
  parser.add_argument('--rounds', type=int, default=7)
  return parser


def _operands(
  rows: int, experts: int, dims: int, hidden: int, dtype: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns rows, weights, and sizes of groups as a router gives them."""
  keys = jax.random.split(jax.random.key(0))
  choices = np.random.default_rng(0).integers(0, experts, rows)
  sizes = np.bincount(choices, minlength=experts)
  return (
    jax.random.normal(keys[0], (rows, dims)).astype(dtype),
    jax.random.normal(keys[1], (experts, dims, hidden)).astype(dtype),
    jnp.asarray(sizes, jnp.int32),
  )


def _measure(
  operands: tuple[jax.Array, jax.Array, jax.Array], step: str, rounds: int
) -> list[dict[str, object]]:
  products: dict[str, _Product] = {
    'grouped': grouped_matmul.grouped_matmul,
    'ragged_dot': jax.lax.ragged_dot,
    'batched': _batched,
  }
  functions = {name: _step(product, step) for name, product in products.items()}
  programs, times = measure.alternate_programs(functions, operands, rounds)
  rows, weights, _ = operands
  flops = 2 * rows.size * weights.shape[2] * (3 if step == 'gradient' else 1)
  return [
    dict(
      implementation=name,
      step=step,
      shape=(rows.shape[0], *weights.shape),
      dtype=str(rows.dtype),
      ratio=measure.ratio(times[name].wall, times['batched'].wall),
      tflops=round(flops / min(times[name].wall) / 1e12, 2),
      temp_bytes=measure.temp_bytes(program),
      **measure.summary(times[name].wall),
    )
    for name, program in programs.items()
  ]


def _step(product: _Product, step: str) -> Callable[..., object]:
  """Returns the product, or that and its gradients."""
  if step == 'forward':
    return product

  def outputs_and_gradients(
    rows: jax.Array, weights: jax.Array, sizes: jax.Array
  ) -> object:
    outputs, pull = jax.vjp(lambda x, w: product(x, w, sizes), rows, weights)
    return outputs, pull(outputs)

  return outputs_and_gradients


def _batched(
  rows: jax.Array, weights: jax.Array, sizes: jax.Array
) -> jax.Array:
  del sizes
  groups = rows.reshape(weights.shape[0], -1, rows.shape[1])
  return jnp.einsum('gmk,gkn->gmn', groups, weights).reshape(rows.shape[0], -1)


if __name__ == '__main__':
  main()
