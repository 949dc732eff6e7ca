# SPDX-License-Identifier: Apache-2.0
"""Time of Adam's update by the native kernel, relative to XLA's and optax's.

    python -m benchmarks.adam --rounds=31
    python -m benchmarks.adam --step --tokens=128 --rounds=31

A round runs every program once. `ratio` is the median over rounds of the time
relative to XLA's lowering of the same update, `cpu_ratio` that of the CPU time
of all threads; `optax_ratio` and `optax_cpu_ratio` are relative to optax.adamw,
which does not clip. `place` is `plain`, or `conditional` as in the learner,
which skips invalid steps. The programs own gradients and state. `--step`
measures the whole training step of the language model of
`benchmarks.step_time`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax

from benchmarks import measure, step_time
from praxis import optimizers
from praxis.kernels import adam, native

# Elements of a variable, and the number of variables.
_SIZES = (
  (2**12, 32),
  (2**14, 32),
  (2**16, 32),
  (2**18, 16),
  (2**20, 8),
  (2**22, 2),
  (2**24, 1),
)
_RATE, _WEIGHT_DECAY = 1e-3, 1e-3
_PLACES = ('plain', 'conditional')


def main() -> None:
  args = _parser().parse_args()
  if args.step:
    measure.report('adam', _measure_step(args.tokens, args.rounds))
    return
  settings = itertools.product(_SIZES, args.clip_thresholds, args.places)
  for (elements, variables), clip_threshold, place in settings:
    shape = (variables, elements)
    line = _measure(shape, clip_threshold, place, args.rounds)
    measure.report('adam', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=31)
  parser.add_argument('--places', nargs='+', default=_PLACES, choices=_PLACES)
  parser.add_argument(
    '--clip_thresholds', type=float, nargs='+', default=(1.0, 0.0)
  )
  parser.add_argument('--step', action='store_true')
  parser.add_argument('--tokens', type=int, default=2048, help='of a step')
  return parser


def _measure(
  shape: tuple[int, int], clip_threshold: float, place: str, rounds: int
) -> dict[str, object]:
  hyperparams = optimizers.AdamHyperparams(
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-6,
    clip_threshold=clip_threshold,
    weight_decay=_WEIGHT_DECAY,
  )
  ours = optimizers.adam_transform(
    lambda step: jnp.full_like(step, _RATE, jnp.float32), hyperparams
  )
  theirs = optax.adamw(_RATE, weight_decay=_WEIGHT_DECAY)
  with _kernel(True):
    programs = {'native': _Update(ours, shape, place)}
  with _kernel(False):
    programs['xla'] = _Update(ours, shape, place)
  programs['optax'] = _Update(theirs, shape, place)
  runs = {name: program.run for name, program in programs.items()}
  measure.alternate(runs, 2)
  times = measure.alternate(runs, rounds)
  ours_times, xla, theirs_times = (times[name] for name in runs)
  return dict(
    elements=shape[1],
    variables=shape[0],
    clip_threshold=clip_threshold,
    place=place,
    isa=native.cpu_isa(),
    ratio=measure.ratio(ours_times.wall, xla.wall),
    cpu_ratio=measure.ratio(ours_times.cpu, xla.cpu),
    optax_ratio=measure.ratio(ours_times.wall, theirs_times.wall),
    optax_cpu_ratio=measure.ratio(ours_times.cpu, theirs_times.cpu),
    temp_bytes={name: program.temp_bytes for name, program in programs.items()},
    **measure.summary(ours_times.wall),
  )


def _kernel(is_used: bool) -> Any:
  """Returns a context in which all updates are traced with, or without it."""
  return mock.patch.object(adam, 'is_fast', return_value=is_used)


class _Update:
  """The compiled update of variables, and its arrays."""

  def __init__(
    self,
    tx: optimizers.GradientTransformation,
    shape: tuple[int, int],
    place: str,
  ):
    variables, elements = shape
    keys = jax.random.split(jax.random.key(0), variables)
    self._params = [jnp.ones((elements // 256, 256)) for _ in keys]
    self._grads = [
      jax.random.normal(key, (elements // 256, 256)) for key in keys
    ]
    self._state = tx.init(self._params)
    step = functools.partial(_step, tx, place)
    arrays = self._grads, self._state, self._params
    jitted = jax.jit(step, donate_argnums=(0, 1))
    self._program = jitted.lower(*arrays).compile()
    self.temp_bytes = measure.temp_bytes(self._program)

  def run(self) -> None:
    # The update is the next gradient, in the same memory.
    self._grads, self._state = self._program(
      self._grads, self._state, self._params
    )
    jax.block_until_ready((self._grads, self._state))


def _step(
  tx: optimizers.GradientTransformation,
  place: str,
  grads: list[jax.Array],
  state: Any,
  params: list[jax.Array],
) -> Any:
  if place == 'plain':
    return tx.update(grads, state, params)
  return jax.lax.cond(
    jnp.isfinite(grads[0][0, 0]),
    lambda: tx.update(grads, state, params),
    lambda: (jax.tree.map(jnp.zeros_like, grads), state),
  )


def _measure_step(tokens: int, rounds: int) -> dict[str, object]:
  length = min(tokens, 256)
  with _kernel(False):
    xla = step_time.PaxStep('spmd', length, tokens)
    losses = [xla.step() for _ in range(3)]
  native = step_time.PaxStep('spmd', length, tokens)
  difference = max(abs(native.step() / loss - 1) for loss in losses)
  times = measure.alternate({'native': native.step, 'xla': xla.step}, rounds)
  return dict(
    tokens=tokens,
    ratio=measure.ratio(times['native'].wall, times['xla'].wall),
    cpu_ratio=measure.ratio(times['native'].cpu, times['xla'].cpu),
    difference_of_losses=difference,
    native=measure.summary(times['native'].wall),
    xla=measure.summary(times['xla'].wall),
  )


if __name__ == '__main__':
  main()
