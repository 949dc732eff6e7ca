# SPDX-License-Identifier: Apache-2.0
"""Iterators of tf.data datasets with a state."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

from absl import logging

from pax.inputs.seqio import errors as seqio_errors
from pax.inputs.seqio import tasks
from praxis import base_input, py_utils

# Key of a state that is a number of batches.
NUM_BATCHES = 'batches'

# Begins a state; those of older checkpoints are text of TensorFlow.
_MAGIC = b'tf.data\x00'
# Parts of a state that are serialized at once, below the 2 GB of a message.
_PARTS = 1024
_SIZE = struct.Struct('<Q')


class DatasetIterator:
  """Yields the batches of a dataset as numpy arrays.

  The state is that of tf.data, which has positions and buffered elements. Where
  a part of the dataset has none, such as a Python generator, it is
  `{'batches': n}`, the number of batches read.
  """

  def __init__(self, dataset: Any, name: str, num_batches: int = 0):
    """Makes the iterator.

    Args:
      dataset: The tf.data.Dataset of batches.
      name: Name of the input, for messages.
      num_batches: Number of batches to read and discard.
    """
    self._dataset = dataset
    self._name = name
    self._iterator = dataset.as_numpy_iterator()
    self._num_batches = 0
    for _ in range(num_batches):
      next(self)

  def __iter__(self) -> DatasetIterator:
    return self

  def __next__(self) -> py_utils.NestedMap:
    batch = next(self._iterator)
    self._num_batches += 1
    return batch

  def get_state(self) -> base_input.State:
    """Returns the state of tf.data, or the number of batches without one."""
    tf = tasks.load_tensorflow()
    try:
      parts = tf.raw_ops.SerializeIterator(resource_handle=self._resource)
    except _errors_without_state() as error:
      logging.log_first_n(
        logging.WARNING,
        '%s: a restart will read and discard the batches before it: %s',
        1,
        self._name,
        seqio_errors.first_line(error),
      )
      return {NUM_BATCHES: self._num_batches}
    # `_save` of the iterator takes a millisecond of CPU time per part.
    chunks = [
      tf.io.serialize_tensor(parts[i : i + _PARTS]).numpy()
      for i in range(0, len(parts), _PARTS)
    ]
    sized = (_SIZE.pack(len(chunk)) + chunk for chunk in chunks)
    return _MAGIC + b''.join(sized)

  def set_state(self, state: bytes) -> None:
    """Restores a state of tf.data.

    Raises:
      ValueError: The state is that of another dataset.
    """
    tf = tasks.load_tensorflow()
    self._iterator = self._dataset.as_numpy_iterator()
    try:
      if not state.startswith(_MAGIC):
        self._iterator._restore(state)
        return
      chunks = [tf.io.parse_tensor(x, tf.variant) for x in _chunks_of(state)]
      # Variants cannot be concatenated.
      parts = [part for chunk in chunks for part in tf.unstack(chunk)]
      tf.raw_ops.DeserializeIterator(
        resource_handle=self._resource, serialized=tf.stack(parts)
      )
    except tf.errors.OpError as error:
      raise ValueError(
        f'the checkpoint has the state of another dataset than {self._name!r}:'
        f' {seqio_errors.first_line(error)}; restore the task, its'
        ' preprocessors, batch_size and the number of hosts of the run that'
        ' saved it'
      ) from error

  @property
  def _resource(self) -> Any:
    # Private: the public tf.train.Checkpoint only writes states to files.
    return self._iterator._iterator._iterator_resource

  def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Writes the state of tf.data as a checkpoint of TensorFlow.

    Raises:
      NotImplementedError: A part of the dataset has no state.
    """
    train = tasks.load_tensorflow().train
    try:
      train.Checkpoint(it=self._iterator).write(checkpoint_path)
    except _errors_without_state() as error:
      raise NotImplementedError(
        f'the state of {self._name!r} cannot be saved to a file: '
        f'{seqio_errors.first_line(error)}; use get_state'
      ) from error

  def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Restores the state from the checkpoint of `save`."""
    train = tasks.load_tensorflow().train
    checkpoint = train.Checkpoint(it=self._iterator)
    checkpoint.read(checkpoint_path).assert_consumed()


def _chunks_of(state: bytes) -> Iterator[bytes]:
  begin = len(_MAGIC)
  while begin < len(state):
    (size,) = _SIZE.unpack_from(state, begin)
    begin += _SIZE.size
    yield state[begin : begin + size]
    begin += size


def _errors_without_state() -> tuple[type[Exception], ...]:
  """Returns the errors of datasets that have no state."""
  errors = tasks.load_tensorflow().errors
  return errors.UnimplementedError, errors.FailedPreconditionError
