# SPDX-License-Identifier: Apache-2.0
"""The files that paths, globs, folders and names of data sets select."""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Sequence

from pax.inputs.records import huggingface_datasets


def expand(pattern: str, suffixes: Sequence[str]) -> list[str]:
  """Returns the files of a pattern, in the order in which they are read.

  Args:
    pattern: A path, a glob, a folder, or the name of a data set of Hugging Face
      (`hf://`). Files of a glob or a folder are sorted.
    suffixes: Ends of the names of files; others are left out.

  Raises:
    ValueError: No file matches, or a data set cannot be loaded.
  """
  if pattern.startswith(huggingface_datasets.PREFIX):
    return huggingface_datasets.arrow_files(pattern)
  path = pathlib.Path(pattern).expanduser()
  # The name of a file may have the characters of a glob.
  expanded = glob.escape(str(path)) if path.exists() else str(path)
  if path.is_dir():
    files = huggingface_datasets.saved_files(path)
    if files is not None:
      return files
    expanded = os.path.join(expanded, '*')
  matches = sorted(
    file
    for file in glob.glob(expanded, recursive=True)
    if file.endswith(tuple(suffixes))
  )
  if not matches:
    raise ValueError(
      f'no file of tokens or text matches {pattern!r} (searched from'
      f' {os.getcwd()}); give paths, globs or folders of {", ".join(suffixes)}'
    )
  return matches
