# SPDX-License-Identifier: Apache-2.0
"""One pass over an eval input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from pax import base_metrics, train_states
from praxis import base_input, pytypes

NestedMap = pytypes.NestedMap

LOSS = 'loss'


class EvalProgram:
  """Evaluates an input, with a step that is compiled at the first batch."""

  def __init__(self, partitioner: Any, inp: base_input.BaseInput):
    self.inp = inp
    self._partitioner = partitioner
    self._key = jax.random.key(partitioner.task.evaluate.random_seed)
    self._step: Any = None

  def run(self, state: train_states.TrainState) -> dict[str, float]:
    """The mean of every metric over the batches, and the mean `loss`.

    Empty when there is no batch. What the input derives from metrics is added.
    """
    means = _Means(self._partitioner.task.train.learner.loss_name)
    for batch in batches(self.inp):
      self._step = self._step or self._partitioner.eval_step(batch)
      on_devices = self._partitioner.put_batch(batch)
      means.add(self._step(state, on_devices, self._key))
    if self.inp.reset_for_eval:
      self.inp.reset()
    metrics = means.result()
    if not metrics:
      logging.warning('Eval input %r gave no batch', self.inp.name)
    return metrics | self.inp.derived_metrics(metrics)


def batches(inp: base_input.BaseInput) -> Iterator[NestedMap]:
  """The batches of one evaluation: an epoch, or the next so many."""
  count = inp.eval_loop_num_batches
  rounds = itertools.count()
  if count and count > 0 and not inp.reset_for_eval:
    rounds = range(count)
  for _ in rounds:
    try:
      yield inp.get_next_padded()
    except StopIteration:
      return


class _Means:
  """Weighted means; the device works on a batch while the last is summed."""

  def __init__(self, loss_name: str | None):
    self._loss_name = loss_name
    self._pending: Any = None
    self._sums: dict[str, np.ndarray] = {}

  def add(self, output: Any) -> None:
    pending, self._pending = self._pending, output
    if pending is not None:
      self._sum(pending)

  def result(self) -> dict[str, float]:
    if self._pending is not None:
      self._sum(self._pending)
    return {
      name: float(total / max(weight, base_metrics.MIN_WEIGHT))
      for name, (total, weight) in self._sums.items()
    }

  def _sum(self, output: Any) -> None:
    loss, scalars = jax.device_get((output.loss, output.weighted_scalars))
    for name, pair in self._with_loss(loss, scalars).items():
      value, weight = np.float64(pair[0]), np.float64(pair[1])
      old = self._sums.get(name, np.zeros(2))
      self._sums[name] = old + [value * weight, weight]

  def _with_loss(
    self, loss: np.ndarray, scalars: Mapping[str, Any]
  ) -> dict[str, Any]:
    weight = scalars[self._loss_name][1] if self._loss_name in scalars else 1
    return {**scalars, LOSS: (loss, weight)}
