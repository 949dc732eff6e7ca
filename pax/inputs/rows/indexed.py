# SPDX-License-Identifier: Apache-2.0
"""Inputs with random access: examples are read by index.

The state is the number of examples that all hosts have read together. The next
indices are a function of it, so a run resumes at any batch, on any number of
hosts.
"""

from __future__ import annotations

import abc

import numpy as np
from jaxtyping import Int64

from pax.inputs.rows import index_permutation
from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap


class IndexedInput(base_input.BaseInput, abc.ABC):
  """Reads examples by index; subclasses define `num_examples` and `read`.

  Training repeats indefinitely, in a new random order each epoch. Evaluation
  reads each example once, in order. The last batch is padded with rows of
  zeros, whose `eval_sample_weights`, float32 [B], are 0; others are 1.
  """

  def __post_init__(self):
    super().__post_init__()
    self._examples = 0

  @property
  @abc.abstractmethod
  def num_examples(self) -> int:
    """Number of examples in an epoch."""

  @abc.abstractmethod
  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    """Returns N examples, stacked along the first dimension; N may be 0.

    Args:
      indices: Indices below `num_examples`.
      positions: Positions in the infinite sequence of examples, as seeds of
        random augmentation.
    """

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: the epoch of evaluation has ended.
      ValueError: the examples repeat, and there is none.
    """
    if self.repeats and not self.num_examples:
      raise ValueError(
        f'the data of {self.name!r} must have at least 1 example, because they'
        ' repeat, got 0; check the files and the filters of the input'
      )
    if not self.repeats and self._examples >= self.num_examples:
      raise StopIteration
    batch_size = self.get_batch_size(self)
    first = self._examples + self.infeed_host_index * batch_size
    self._examples += self.get_global_batch_size(self)
    positions = np.arange(first, first + batch_size)
    if not self.repeats:
      positions = positions[positions < self.num_examples]
    batch = self.read(self.indices(positions), positions)
    if 'eval_sample_weights' not in batch:
      batch.eval_sample_weights = np.ones(len(positions), np.float32)
    missing = batch_size - len(positions)
    return self.padded(batch, missing) if missing else batch

  def indices(self, positions: Int64[np.ndarray, ' N']) -> np.ndarray:
    """Returns the indices of examples at positions of the infinite sequence."""
    if self.is_training:
      return index_permutation.endless(positions, self.num_examples, self.seed)
    return positions % self.num_examples

  def padded(self, batch: NestedMap, num_rows: int) -> NestedMap:
    """Returns `batch` with further rows, of weight 0."""
    return base_input.pad_rows(batch, num_rows)

  def reset(self) -> None:
    self.seek(0)

  def seek(self, num_batches: int) -> None:
    """Continues after the first `num_batches` batches, in constant time."""
    global_batch_size = self.get_global_batch_size(self)
    self.set_state({'examples': num_batches * global_batch_size})

  @property
  def repeats(self) -> bool:
    """Whether the examples repeat indefinitely."""
    return self.is_training

  @property
  def seed(self) -> int:
    """Seed of the random order."""
    return self.input_random_seed or 0

  @property
  def num_batches(self) -> int:
    """Batches per epoch; the last is padded, or continues in the next epoch."""
    return -(-self.num_examples // self.get_global_batch_size(self))

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])
