# SPDX-License-Identifier: Apache-2.0
"""Errors of TensorFlow, TFDS and SeqIO in one sentence."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence

from pax.inputs.records import tfrecord_files

_ADVICE = (
  'check that its files exist and can be reached, or train without them:'
  ' --set SYNTHETIC_DATA=True (one constant batch, in experiments on C4) or'
  " --set TRAIN_DATA='/data/*.txt' (text files, in any language model; the"
  ' quickstart experiments have TRAIN_FILES)'
)
# How TensorFlow names a damaged record; it does not name the file.
_POSITION = re.compile(r'record at (\d+)')


@contextlib.contextmanager
def explained(
  data: str, list_files: Callable[[], Sequence[str]] = tuple
) -> Iterator[None]:
  """Replaces errors of readers in its block by a ValueError.

  Args:
    data: The name of the data, for the message.
    list_files: Returns the files of the data, to find a damaged one.

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
  except errors.DataLossError as error:
    damage = _find_damage(str(error), list_files()) or first_line(error)
    raise ValueError(
      f'cannot read the {data}: {damage}; write the file again'
    ) from error
  except (errors.OpError, OSError, AssertionError, missing) as error:
    raise ValueError(
      f'cannot read the {data}: {first_line(error)}; {_ADVICE}'
    ) from error


def _find_damage(message: str, files: Sequence[str]) -> str:
  """Returns the damaged record of local files, '' if it is not found."""
  if not (match := _POSITION.search(message)):
    return ''
  local = (path for path in files if os.path.isfile(path))
  damages = (tfrecord_files.damage_at(path, int(match[1])) for path in local)
  return next(filter(None, damages), '')


def first_line(error: BaseException) -> str:
  """Returns the first line of a message, without names of graph nodes."""
  text = str(error).strip()
  if text.startswith('{{') and '}} ' in text:
    text = text.split('}} ', 1)[1]
  lines = text.splitlines() or [type(error).__name__]
  return lines[0].rstrip('. ')
