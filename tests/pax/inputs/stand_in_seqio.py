# SPDX-License-Identifier: Apache-2.0
"""The little of SeqIO that inputs ask for, in numpy."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class ShardInfo:
  index: int
  num_shards: int


class Dataset:
  """Examples that may be skipped."""

  def __init__(self, examples):
    self._examples = examples

  def skip(self, count):
    return Dataset(lambda: self._skip(count))

  def as_numpy_iterator(self):
    return iter(self._examples())

  def _skip(self, count):
    found = self._examples()
    for _ in range(count):
      next(found, None)
    return found


class Vocabulary:
  def decode(self, ids):
    return '-'.join(map(str, ids))


class Task:
  """Example i is `i + 1` tokens `10 + i`; it notes how it was asked."""

  name = 'counting'
  score_metric_fns: tuple[Any, ...] = ()
  output_features = {
    name: types.SimpleNamespace(vocabulary=Vocabulary())
    for name in ('inputs', 'targets')
  }

  def __init__(self, count=5):
    self.count, self.asked = count, []

  def get_dataset(self, *, shuffle, num_epochs, shard_info, seed, **asked):
    self.asked.append({'shuffle': shuffle, 'seed': seed, **asked})

    def examples():
      epoch = 0
      while num_epochs < 0 or epoch < num_epochs:
        order = np.arange(self.count)
        if shuffle:
          order = np.random.default_rng([seed, epoch]).permutation(order)
        if shard_info:
          order = order[shard_info.index :: shard_info.num_shards]
        for i in order:
          yield {
            'targets': np.full(i % 3 + 1, 10 + i),
            'text': np.array([b'text'], object),
          }
        epoch += 1

    return Dataset(examples)


class Registry:
  def __init__(self):
    self.tasks = {}

  def names(self):
    return self.tasks.keys()

  def add(self, name, task):
    self.tasks[name] = task


def module() -> Any:
  """Returns what stands for the module `seqio`."""
  tasks, mixtures = Registry(), Registry()
  return types.SimpleNamespace(
    ShardInfo=ShardInfo,
    Mixture=type('Mixture', (Task,), {}),
    PassThroughVocabulary=type('PassThroughVocabulary', (Vocabulary,), {}),
    TaskRegistry=tasks,
    MixtureRegistry=mixtures,
    get_mixture_or_task=lambda name: {**tasks.tasks, **mixtures.tasks}[name],
  )
