# SPDX-License-Identifier: Apache-2.0
"""Sharded data files, and the ids that SeqIO gives the examples in them."""

from __future__ import annotations

from typing import Any

import numpy as np

# Features that SeqIO adds when it records the provenance of examples.
PROVENANCE_PREFIX = '_seqio_provenance'
INDEX_WITHIN_SHARD_KEY = f'{PROVENANCE_PREFIX}/index_within_shard'
SHARD_INDEX_KEY = f'{PROVENANCE_PREFIX}/shard_index'
NUM_SHARDS_KEY = f'{PROVENANCE_PREFIX}/num_shards'
ENUM_PROVENANCE_KEYS = (INDEX_WITHIN_SHARD_KEY, SHARD_INDEX_KEY, NUM_SHARDS_KEY)


def sharded_file_pattern_to_glob(file_pattern: str) -> str:
  """Returns the glob of a sharded file.

  `path@8` becomes `path-?????-of-00008`; `path@*` matches any number of shards.

  Raises:
    ValueError: `file_pattern` is a comma-separated list.
  """
  if ',' in file_pattern:
    raise ValueError(
      f'sharded_file_pattern_to_glob takes one pattern, got {file_pattern!r}; '
      'split it at the commas'
    )
  path, at, shards = file_pattern.partition('@')
  if not at:
    return path
  return f'{path}-?????-of-' + ('*' if shards == '*' else f'{int(shards):05}')


def get_enumeration_id(
  example: dict[str, Any], pop: bool = False
) -> str | None:
  """Returns the id of a SeqIO example within its dataset.

  Args:
    example: features by name.
    pop: whether to remove the provenance features from `example`.

  Returns:
    The id, or None for an example without provenance features.
  """
  if not all(key in example for key in ENUM_PROVENANCE_KEYS):
    return None
  look_up = example.pop if pop else example.get
  return '/'.join(
    f'{key}={int(np.asarray(look_up(key)).item())}'
    for key in ENUM_PROVENANCE_KEYS
  )
