# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of softmax_xent relative to XLA's lowering.

    python -m benchmarks.softmax_xent --rounds=15

Reports each model dimension, dtype and implementation. `plain` computes all
logits, `log_softmax` and a gather. A round runs each implementation once.
`ratio` is the median over rounds of the time relative to `plain`, `cpu_ratio`
that of the CPU time of all threads.
`temp_bytes` is XLA's buffer assignment without arguments and results.
`rss_bytes` is the growth of the resident memory of a new process by compilation
and three steps, results included.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks import measure
from praxis.kernels import native, softmax_xent_native
from praxis.kernels import softmax_xent as softmax_xent_lib

_DIMS = (256, 512, 1024)
_DTYPES = ('float32', 'bfloat16')


def main() -> None:
  args = _parser().parse_args()
  if args.peak_of:
    print(_peak_growth(args))
    return
  for dims in args.dims:
    for dtype in args.dtypes:
      for line in _measure(args, dims, dtype):
        measure.report('softmax_xent', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--tokens', type=int, default=2048)
  parser.add_argument('--vocab', type=int, default=32000)
  parser.add_argument('--rounds', type=int, default=15)
  parser.add_argument('--dims', type=int, nargs='+', default=_DIMS)
  parser.add_argument('--dtypes', nargs='+', default=_DTYPES)
  parser.add_argument('--peak_of', help=argparse.SUPPRESS)
  return parser


def _implementations() -> list[str]:
  names = ['plain', 'auto', 'reference']
  on_gpu = jax.default_backend() == 'gpu'
  if on_gpu and native.has_kernel('CUDA', softmax_xent_native.ROWS):
    names.append('native')
  return names


def _measure(args: argparse.Namespace, dims: int, dtype: str) -> list[dict]:
  operands = _operands(args, dims, dtype)
  steps = {i: _compile(i, operands) for i in _implementations()}
  runs = {i: _run(step, operands) for i, step in steps.items()}
  measure.alternate(runs, 1)
  times = measure.alternate(runs, args.rounds)
  plain = times['plain']
  memory = {i: _memory(args, i, dims, dtype, steps[i]) for i in steps}
  shape = dict(tokens=args.tokens, dims=dims, vocab=args.vocab)
  return [
    dict(
      implementation=name,
      shape=shape,
      dtype=dtype,
      device=_device(),
      **measure.summary(times[name].wall),
      **memory[name],
      ratio=measure.ratio(times[name].wall, plain.wall),
      cpu_ratio=measure.ratio(times[name].cpu, plain.cpu),
    )
    for name in steps
  ]


def _operands(
  args: argparse.Namespace, dims: int, dtype: str
) -> tuple[jax.Array, ...]:
  keys = jax.random.split(jax.random.key(0), 3)
  scale = dims**-0.5
  return (
    jax.random.normal(keys[0], (args.tokens, dims)).astype(dtype),
    (scale * jax.random.normal(keys[1], (dims, args.vocab))).astype(dtype),
    jax.random.randint(keys[2], (args.tokens,), 0, args.vocab),
    jnp.ones((args.tokens,)),
  )


def _compile(
  implementation: str, operands: tuple[jax.Array, ...]
) -> jax.stages.Compiled:
  """Returns the loss and the gradients of x and w."""

  def loss(x, w, labels, weights):
    if implementation == 'plain':
      total = jnp.sum(weights * _plain(x, w, labels))
    else:
      options = softmax_xent_lib.Options(implementation=implementation)
      args = (x, w, labels, weights, None, options)
      total = softmax_xent_lib.softmax_xent(*args).total
    return total / jnp.sum(weights)

  step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  return step.lower(*operands).compile()


def _run(
  step: Callable[..., object], operands: tuple[jax.Array, ...]
) -> Callable[[], object]:
  return lambda: jax.block_until_ready(step(*operands))


def _plain(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
  log_probs = jax.nn.log_softmax((x @ w).astype(jnp.float32))
  return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]


def _memory(
  args: argparse.Namespace,
  name: str,
  dims: int,
  dtype: str,
  step: jax.stages.Compiled,
) -> dict[str, int | None]:
  command = [sys.executable, '-m', 'benchmarks.softmax_xent']
  command += [f'--peak_of={name}']
  command += [f'--tokens={args.tokens}', f'--vocab={args.vocab}']
  command += [f'--dims={dims}', f'--dtypes={dtype}']
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  return dict(
    temp_bytes=measure.temp_bytes(step),
    rss_bytes=int(done.stdout.split()[-1]),
  )


def _peak_growth(args: argparse.Namespace) -> int:
  """Returns the growth of resident memory by compilation and three steps."""
  operands = jax.block_until_ready(
    _operands(args, args.dims[0], args.dtypes[0])
  )
  before = _resident('VmRSS')
  step = _compile(args.peak_of, operands)
  for _ in range(3):
    jax.block_until_ready(step(*operands))
  return _resident('VmHWM') - before


def _resident(field: str) -> int:
  """Returns current (VmRSS) or peak (VmHWM) resident bytes."""
  status = pathlib.Path('/proc/self/status').read_text()
  line = next(x for x in status.splitlines() if x.startswith(field))
  return 1024 * int(line.split()[1])


def _device() -> str:
  device = jax.devices()[0]
  if device.platform != 'cpu':
    return device.device_kind
  cpus = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  models = [line for line in cpus if line.startswith('model name')]
  name = models[0].split(':')[1].strip() if models else 'unknown'
  return f'{len(models)} x {name}'


if __name__ == '__main__':
  main()
