# SPDX-License-Identifier: Apache-2.0
"""Groups of items with a limited number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar('T')


def split_by_bytes(
  items: Iterable[T], num_bytes: Callable[[T], int], max_bytes: int
) -> Iterator[list[T]]:
  """Yields consecutive items in groups of at most `max_bytes`.

  An item that is larger is a group of its own.

  Args:
    items: The items.
    num_bytes: Returns the size of an item.
    max_bytes: Maximum size of a group of several items.
  """
  group: list[T] = []
  size = 0
  for item in items:
    item_bytes = num_bytes(item)
    if group and size + item_bytes > max_bytes:
      yield group
      group, size = [], 0
    group.append(item)
    size += item_bytes
  if group:
    yield group
