# SPDX-License-Identifier: Apache-2.0
"""Batches of a Grain data set, with its iterators and worker processes."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from praxis import base_input, lazy_loader, py_utils, value_domains
from praxis.base_input import data_fingerprints

NestedMap = py_utils.NestedMap

# Examples that are read ahead, by as many threads at most.
_NUM_BUFFERED_EXAMPLES, _NUM_READ_THREADS = 64, 16
# More than any job reads: batches of a longer data set overflow its length.
_MAX_EXAMPLES = 1 << 60


class GrainInput(base_input.BaseInput):
  """Batches of the examples of a `grain.MapDataset` or `grain.IterDataset`.

  Global batch i of a MapDataset is a function of i: hosts and worker processes
  read parts of it, and the state is the number of examples that all hosts have
  read. An IterDataset must be that of its host; its state is that of Grain's
  iterator, which belongs to a number of hosts and workers.
  """

  # Returns the data set of examples, nested dicts of arrays, for
  # (host_index, num_hosts, seed); a text is `module:function`. A MapDataset
  # must be the same for all hosts.
  make_dataset: Callable[[int, int, int], Any] | str | None = None
  # Processes that read and transform examples; 0 reads in this process.
  num_workers: int = value_domains.field(0, ge=0)
  # Whether a MapDataset repeats; None repeats in training. Otherwise the last
  # batch is padded by rows of zeros, whose `eval_sample_weights` are 0, as is
  # that of an IterDataset in evaluation.
  repeat: bool | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.make_dataset is None:
      raise ValueError(
        f'make_dataset of {self.name!r} is not set; it is a function of'
        ' (host_index, num_hosts, seed) that returns a data set of Grain'
      )
    self._grain = self._import_grain()
    self._dataset = self._make_dataset(self.make_dataset)
    self._has_global_order = isinstance(self._dataset, self._grain.MapDataset)
    if self._has_global_order:
      self._check_end(self._repeats or self._is_endless)
    self.reset()

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: The data has ended.
      RuntimeError: A worker process died.
    """
    if not self._has_global_order:
      batch = _arrays(next(self._iterator))
      return _with_weights(batch, self.get_batch_size(self))
    if not self._repeats and self._examples >= len(self._dataset):
      raise StopIteration
    try:
      batch = _arrays(next(self._iterator))
    except StopIteration:
      # The other hosts read the last examples.
      batch = jax.tree.map(lambda x: np.asarray(x)[None][:0], self._dataset[0])
      batch = NestedMap.FromNestedDict(batch)
    self._examples += self.get_global_batch_size(self)
    return _with_weights(batch, self.get_batch_size(self))

  def reset(self) -> None:
    self._peeked = self._state_before_peek = None
    self._examples = 0
    self._iterator = iter(self._batches())

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    if not self._has_global_order:
      return {}
    return {
      'examples': len(self._dataset),
      'repeat': self._repeats,
      'seed': self.input_random_seed or 0,
    }

  @property
  def _repeats(self) -> bool:
    return self.is_training if self.repeat is None else self.repeat

  @property
  def _is_endless(self) -> bool:
    """Whether a MapDataset repeats by itself."""
    return len(self._dataset) > _MAX_EXAMPLES

  def _import_grain(self) -> types.ModuleType:
    try:
      return importlib.import_module('grain')
    except ModuleNotFoundError as e:
      raise ValueError(
        f"{self.name!r} needs the package grain; pip install 'pax-jax[data]'"
      ) from e

  def _make_dataset(
    self, make_dataset: Callable[[int, int, int], Any] | str
  ) -> Any:
    """Returns the data set of examples."""
    function: Callable[[int, int, int], Any] = (
      lazy_loader.import_function(make_dataset, 'make_dataset')
      if isinstance(make_dataset, str)
      else make_dataset
    )
    dataset = function(
      self.infeed_host_index,
      self.num_infeed_hosts,
      self.input_random_seed or 0,
    )
    if isinstance(dataset, self._grain.MapDataset) and not len(dataset):
      raise ValueError(f'the data set of {self.name!r} has no examples')
    return dataset

  def _batches(self) -> Any:
    """Returns the data set of the batches of this host from its position."""
    if self._has_global_order:
      dataset = self._global_order().to_iter_dataset(
        self._grain.ReadOptions(
          num_threads=min(_NUM_READ_THREADS, self._num_buffered_batches),
          prefetch_buffer_size=self._num_buffered_batches,
        )
      )
    else:
      dataset = self._dataset.batch(
        self.batch_size, drop_remainder=self.is_training
      )
    if self.num_workers:
      # Grain reads flags of its own, which have their defaults here.
      if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
      options = self._grain.MultiprocessingOptions(num_workers=self.num_workers)
      dataset = dataset.mp_prefetch(options)
    return dataset

  @property
  def _num_buffered_batches(self) -> int:
    return max(2, _NUM_BUFFERED_EXAMPLES // self.get_batch_size(self))

  def _global_order(self) -> Any:
    """Returns every n-th batch from the position, that of this host.

    Workers divide batches, so that their number does not change the order.
    """
    dataset = self._dataset
    if self._repeats and not self._is_endless:
      dataset = dataset.repeat()
    try:
      batches = dataset[self._examples : _MAX_EXAMPLES].batch(self.batch_size)
    except ValueError as e:
      raise ValueError(
        f'the data set of {self.name!r} must be an IterDataset: call'
        f' to_iter_dataset() in make_dataset ({e})'
      ) from e
    return batches[self.infeed_host_index :: self.num_infeed_hosts]

  def _get_state_internal(self) -> base_input.State:
    if self._has_global_order:
      return {'examples': self._examples}
    return {
      'grain': self._iterator.get_state(),
      'num_infeed_hosts': self.num_infeed_hosts,
      'num_workers': self.num_workers,
    }

  def _set_state_internal(self, state: base_input.State) -> None:
    if self._has_global_order != ('examples' in state):
      kinds = 'an IterDataset', 'a MapDataset'
      raise ValueError(
        f'the data set of {self.name!r} must be'
        f' {kinds["examples" in state]}, as when its state was saved, got'
        f' {kinds[self._has_global_order]}; return it from make_dataset'
      )
    if self._has_global_order:
      self._examples = int(state['examples'])
      self._iterator = iter(self._batches())
      return
    for name in ('num_infeed_hosts', 'num_workers'):
      if state[name] != getattr(self, name):
        raise ValueError(
          f'{name} of {self.name!r} must be {state[name]}, as when its state'
          f' was saved, got {getattr(self, name)}: the iterators of an'
          ' IterDataset depend on it; continue with the same number, or return'
          ' a MapDataset from make_dataset in new jobs'
        )
    self._iterator = iter(self._batches())
    self._iterator.set_state(state['grain'])


def _arrays(batch: Any) -> NestedMap:
  return NestedMap.FromNestedDict(jax.tree.map(np.asarray, batch))


def _with_weights(batch: NestedMap, batch_size: int) -> NestedMap:
  """Returns a batch of `batch_size` rows with `eval_sample_weights`."""
  num_rows = len(jax.tree.leaves(batch)[0])
  if 'eval_sample_weights' not in batch:
    batch.eval_sample_weights = np.ones(num_rows, np.float32)
  return base_input.pad_rows(batch, batch_size - num_rows)
