# SPDX-License-Identifier: Apache-2.0
"""Errors of TensorFlow, TFDS and SeqIO in one sentence."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

_ADVICE = (
  'check that its files exist and can be reached, or train without them:'
  ' --set SYNTHETIC_DATA=True (one constant batch, in experiments on C4) or'
  " --set TRAIN_DATA='/data/*.txt' (text files, in any language model; the"
  ' quickstart experiments have TRAIN_FILES)'
)


@contextlib.contextmanager
def explained(data: str) -> Iterator[None]:
  """Replaces errors of readers in its block by a ValueError.

  Args:
    data: The name of the data, for the message.

  Raises:
    ValueError: The data cannot be read, or an example is refused.
  """
  errors = importlib.import_module('tensorflow').errors
  tfds = importlib.import_module('tensorflow_datasets')
  missing = tfds.core.registered.DatasetNotFoundError
  try:
    yield
  except errors.OutOfRangeError:
    raise  # The end of the data.
  except errors.InvalidArgumentError as error:
    raise ValueError(
      f'an example of the {data}, is refused: {first_line(error)}; check'
      ' task_feature_lengths and the preprocessors of the task'
    ) from error
  except (errors.OpError, OSError, AssertionError, missing) as error:
    raise ValueError(
      f'cannot read the {data}: {first_line(error)}; {_ADVICE}'
    ) from error


def first_line(error: BaseException) -> str:
  """Returns the first line of a message, without names of graph nodes."""
  text = str(error).strip()
  if text.startswith('{{') and '}} ' in text:
    text = text.split('}} ', 1)[1]
  lines = text.splitlines() or [type(error).__name__]
  return lines[0].rstrip('. ')
