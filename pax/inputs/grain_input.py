# SPDX-License-Identifier: Apache-2.0
"""Batches of a Grain data set, with its iterators and worker processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from praxis import base_input, py_utils, value_domains

NestedMap = py_utils.NestedMap


class GrainInput(base_input.BaseInput):
  """Batches of the examples of a `grain.MapDataset` or `grain.IterDataset`.

  Hosts read every n-th example of a MapDataset; an IterDataset must be that of
  its host. The state is that of Grain's iterator, so it belongs to a number of
  hosts; for an order that does not depend on it, see `row_input.RowInput`.
  """

  # Returns the data set of examples, nested dicts of arrays, for
  # (host_index, num_hosts, seed); a text is `module:function`.
  make_dataset: Callable[[int, int, int], Any] | str | None = None
  # Processes that read and transform examples; 0 reads in this process.
  num_workers: int = value_domains.field(0, ge=0)
  # Whether a MapDataset repeats; None repeats in training.
  repeat: bool | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.make_dataset is None:
      raise ValueError(
        f'make_dataset of {self.name!r} is not set; it is a function of'
        ' (host_index, num_hosts, seed) that returns a data set of Grain'
      )
    self._dataset = self._build()
    self._iterator = iter(self._dataset)

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: The data has ended.
      RuntimeError: A worker process died.
    """
    batch = next(self._iterator)
    batch = NestedMap.FromNestedDict(jax.tree.map(np.asarray, batch))
    if 'eval_sample_weights' not in batch:
      batch.eval_sample_weights = np.ones(self.batch_size, np.float32)
    return batch

  def reset(self) -> None:
    self._peeked = self._state_before_peek = None
    self._iterator = iter(self._dataset)

  def _build(self) -> Any:
    """Returns the data set of batches."""
    try:
      grain = importlib.import_module('grain')
    except ModuleNotFoundError as e:
      raise ValueError(
        f"{self.name!r} needs the package grain; pip install 'pax[data]'"
      ) from e
    hosts = self.num_infeed_hosts
    make_dataset = self.make_dataset
    if isinstance(make_dataset, str):
      make_dataset = _import_function(make_dataset)
    dataset = make_dataset(
      self.infeed_host_index, hosts, self.input_random_seed or 0
    )
    if isinstance(dataset, grain.MapDataset):
      # All hosts have equally many examples.
      end = len(dataset) - len(dataset) % hosts
      dataset = dataset[self.infeed_host_index : end : hosts]
      if self.is_training if self.repeat is None else self.repeat:
        dataset = dataset.repeat()
      dataset = dataset.to_iter_dataset()
    dataset = dataset.batch(self.batch_size, drop_remainder=True)
    if self.num_workers:
      # Grain reads flags of its own, which have their defaults here.
      if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
      options = grain.MultiprocessingOptions(num_workers=self.num_workers)
      dataset = dataset.mp_prefetch(options)
    return dataset

  def _get_state_internal(self) -> base_input.State:
    return {
      'grain': self._iterator.get_state(),
      'num_infeed_hosts': self.num_infeed_hosts,
      'num_workers': self.num_workers,
    }

  def _set_state_internal(self, state: base_input.State) -> None:
    for name in ('num_infeed_hosts', 'num_workers'):
      if state[name] != getattr(self, name):
        raise ValueError(
          f'{name} of {self.name!r} must be {state[name]}, as when its state'
          f" was saved, got {getattr(self, name)}: Grain's iterators depend on"
          ' it'
        )
    self._iterator = iter(self._dataset)
    self._iterator.set_state(state['grain'])


def _import_function(name: str) -> Callable[[int, int, int], Any]:
  """Returns the function `module:function`."""
  module, _, function = name.partition(':')
  try:
    return getattr(importlib.import_module(module), function)
  except (AttributeError, ImportError, ValueError) as e:
    raise ValueError(
      f'make_dataset must be module:function, got {name!r}: {e}'
    ) from e
