# SPDX-License-Identifier: Apache-2.0
"""Index of an OCDBT database: the files that contain the values of its keys."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Iterator
from typing import Any

from pax import storage
from pax.checkpoints import tensorstore_format
from pax.checkpoints.types import CorruptCheckpointError


@dataclasses.dataclass(frozen=True, order=True)
class Location:
  """A part of a file."""

  # Path below the folder of the database.
  file: str
  offset: int
  size: int

  @property
  def end(self) -> int:
    """The offset of the next byte."""
    return self.offset + self.size


# A small value is in the index itself.
Index = dict[str, bytes | Location]


def read(folder: storage.Path) -> Index:
  """Returns the values of all keys, or where they are.

  Args:
    folder: The folder of the database.

  Raises:
    CorruptCheckpointError: The index cannot be read.
  """
  import tensorstore as ts

  with tensorstore_format.raise_as(CorruptCheckpointError, folder):
    store = ts.KvStore.open(
      storage.kvstore(folder.absolute()),
      context=tensorstore_format.create_context(),
    ).result()
    versions = ts.ocdbt.dump(store).result()['versions']
    return dict(_entries(store, versions[-1]['root']['location'], ''))


def _entries(
  store: Any, node: str, prefix: str
) -> Iterator[tuple[str, bytes | Location]]:
  """Yields the keys below a node of the B-tree."""
  import tensorstore as ts

  for entry in ts.ocdbt.dump(store, node=node).result()['entries']:
    if 'location' in entry:
      common = entry['subtree_common_prefix'].decode()
      yield from _entries(store, entry['location'], f'{prefix}{common}')
      continue
    value = entry.get('inline_value')
    if value is None:
      value = _parse_location(entry['indirect_value'])
    yield f'{prefix}{entry["key"].decode()}', value


def _parse_location(text: str) -> Location:
  """Returns the location of `value:BASE:PATH:OFFSET:SIZE`, with escapes."""
  _, base, path, offset, size = text.split(':')
  file = urllib.parse.unquote(base) + urllib.parse.unquote(path)
  return Location(file, int(offset), int(size))
