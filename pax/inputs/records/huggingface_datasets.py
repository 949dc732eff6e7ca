# SPDX-License-Identifier: Apache-2.0
"""Data sets of Hugging Face: the Arrow files of a name or a saved folder.

The package `datasets`, which only names need, downloads a data set and writes
it to its cache as Arrow files. These are read like others.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import re

PREFIX = 'hf://'

# hf://OWNER/NAME, hf://OWNER/NAME/CONFIGURATION:SPLIT, hf:///FOLDER:SPLIT.
_HUB_NAME = re.compile(
  r'(?P<path>/[^:]*|[\w.-]+(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>\w+))?'
)
_DEFAULT_SPLIT = 'train'


def arrow_files(name: str) -> list[str]:
  """Returns the Arrow files of a data set, which is downloaded if necessary.

  Args:
    name: 'hf://' before the name of a data set on the hub, or before the path
      of a folder of data files; optionally '/' and a configuration, ':' and a
      split.

  Raises:
    ValueError: The name is malformed, the data set does not exist or cannot be
      downloaded, or the package `datasets` is not installed.
  """
  match = _HUB_NAME.fullmatch(name.removeprefix(PREFIX))
  if match is None:
    raise ValueError(
      f'a data set of Hugging Face must be {PREFIX}OWNER/NAME,'
      f' {PREFIX}OWNER/NAME/CONFIGURATION or one of them with :SPLIT, got'
      f' {name!r}'
    )
  try:
    datasets = importlib.import_module('datasets')
  except ModuleNotFoundError as e:
    raise ValueError(
      f"{name} needs the package datasets; pip install 'pax-jax[hf]'"
    ) from e
  split = match['split'] or _DEFAULT_SPLIT
  try:
    dataset = datasets.load_dataset(match['path'], match['config'], split=split)
  except (OSError, ValueError) as e:
    raise ValueError(
      f'{name} must be a data set of Hugging Face with the split {split!r}:'
      f' {e}. Name another one, or download it where the hub can be reached'
    ) from e
  return [file['filename'] for file in dataset.cache_files]


def saved_files(folder: pathlib.Path) -> list[str] | None:
  """Returns the Arrow files that `save_to_disk` wrote to a folder.

  Other Arrow files of the folder are caches of transformations.

  Returns:
    The files in their order; None if the folder is no saved data set.

  Raises:
    ValueError: The folder has several splits.
  """
  if (folder / 'dataset_dict.json').exists():
    splits = json.loads((folder / 'dataset_dict.json').read_text())['splits']
    raise ValueError(
      f'{folder} has the splits {splits}; name one of them, such as'
      f' {folder / splits[0]}'
    )
  if not (folder / 'state.json').exists():
    return None
  state = json.loads((folder / 'state.json').read_text())
  if '_data_files' not in state:
    return None
  return [str(folder / file['filename']) for file in state['_data_files']]
