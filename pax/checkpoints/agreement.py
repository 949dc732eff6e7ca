# SPDX-License-Identifier: Apache-2.0
"""Agreement of all processes on the success of a phase of saving or restoring.

A phase that fails in one process fails in all of them, with the cause.
"""

from __future__ import annotations

from collections.abc import Mapping

from pax import coordination_service
from pax.checkpoints.types import CheckpointError, CorruptCheckpointError

# First characters of the texts of processes that failed.
_CORRUPT, _OTHER = 'C', 'O'


def exchange(
  text: str, barriers: coordination_service.Barriers, barrier: str
) -> Mapping[int, str]:
  """Returns the texts of all processes by process index.

  Args:
    text: The text of this process.
    barriers: Barriers of the checkpointer.
    barrier: Name of the barrier at which all processes meet.

  Raises:
    CheckpointError: A process does not reach the barrier in time.
  """
  try:
    return barriers.wait(barrier, text)
  except coordination_service.MissingProcessesError as e:
    raise CheckpointError(
      f'{e} (--async_timeout_secs); the other processes stopped waiting'
    ) from e


def agree(
  error: Exception | None,
  barriers: coordination_service.Barriers,
  barrier: str,
) -> Exception | None:
  """Returns the error that this process has to raise; None if all succeeded.

  That is its own error if it has one, otherwise that of the first process that
  failed, or of those that do not reach the barrier.

  Args:
    error: The error of this process.
    barriers: Barriers of the checkpointer.
    barrier: Name of the barrier at which all processes meet.
  """
  text = ''
  if error is not None:
    is_corrupt = isinstance(error, CorruptCheckpointError)
    text = f'{_CORRUPT if is_corrupt else _OTHER}{error or type(error)}'
  try:
    texts = exchange(text, barriers, barrier)
  except CheckpointError as e:
    return error or e
  failures = {index: text for index, text in texts.items() if text}
  if error is not None or not failures:
    return error
  index, text = min(failures.items())
  if text[0] == _CORRUPT:
    return CorruptCheckpointError(text[1:])
  return CheckpointError(f'process {index} of {len(texts)}: {text[1:]}')
