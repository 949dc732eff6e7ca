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

from pax.inputs import index_permutation
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
    indices: Int64[np.ndarray, 'N'],
    positions: Int64[np.ndarray, 'N'],
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
    """
    if not self.is_training and self._examples >= self.num_examples:
      raise StopIteration
    first = self._examples + self.infeed_host_index * self.batch_size
    self._examples += self.batch_size * self.num_infeed_hosts
    positions = np.arange(first, first + self.batch_size)
    if self.is_training:
      indices = index_permutation.endless(
        positions, self.num_examples, self.seed
      )
    else:
      indices = positions = positions[positions < self.num_examples]
    missing = self.batch_size - len(indices)
    batch = self.read(indices, positions)
    batch.eval_sample_weights = np.ones(len(indices), np.float32)
    return batch.Transform(lambda x: _pad(x, missing)) if missing else batch

  def reset(self) -> None:
    self.set_state({'examples': 0})

  @property
  def seed(self) -> int:
    """Seed of the random order."""
    return self.input_random_seed or 0

  @property
  def num_batches(self) -> int:
    """Batches per epoch; the last is padded, or continues in the next epoch."""
    global_batch = self.batch_size * self.num_infeed_hosts
    return -(-self.num_examples // global_batch)

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])


def _pad(x: np.ndarray, rows: int) -> np.ndarray:
  return np.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1))
