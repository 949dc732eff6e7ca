# SPDX-License-Identifier: Apache-2.0
"""States of inputs that write and read files (`BaseInput.save`, `restore`)."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping

Path = pathlib.Path

# Name of the path that the input gets. It may write a folder there, or several
# files with suffixes, as TensorFlow does.
_NAME = 'input'


def read_saved(save: Callable[[Path], None]) -> dict[str, bytes]:
  """Returns the files that `save` writes at a path, by name."""
  with tempfile.TemporaryDirectory() as folder:
    save(Path(folder) / _NAME)
    return {
      os.path.relpath(path, folder): path.read_bytes()
      for path in sorted(Path(folder).rglob('*'))
      if path.is_file()
    }


def restore_from(
  files: Mapping[str, bytes], restore: Callable[[Path], None]
) -> None:
  """Calls `restore` with a path at which the files of `read_saved` are.

  Raises:
    ValueError: a name leads out of the folder.
  """
  with tempfile.TemporaryDirectory() as folder:
    for name, content in files.items():
      path = Path(folder) / name
      if Path(name).is_absolute() or '..' in Path(name).parts:
        raise ValueError(
          f'the state of an input must have relative file names, got {name!r}'
        )
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)
    restore(Path(folder) / _NAME)
