# SPDX-License-Identifier: Apache-2.0
"""Registration of containers with Fiddle: NestedMaps and dataclasses.

Fiddle builds, draws and serializes the Configs within registered containers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from fiddle import daglish

from praxis import nested_map

if TYPE_CHECKING:
  from _typeshed import DataclassInstance

T = TypeVar('T', bound='DataclassInstance')

# Upstream has its own registry; here all traversals use Fiddle's.
BasicTraversal = daglish.BasicTraversal
MemoizedTraversal = daglish.MemoizedTraversal
iterate = daglish.iterate

daglish.register_node_traverser(
  nested_map.NestedMap,
  flatten_fn=lambda m: (tuple(m.values()), tuple(m)),
  unflatten_fn=lambda values, keys: nested_map.NestedMap(
    zip(keys, values, strict=True)
  ),
  path_elements_fn=lambda m: tuple(daglish.Key(key) for key in m),
)


def register_dataclass(cls: type[T]) -> type[T]:
  """Makes Fiddle traverse objects of a dataclass, and save them as JSON."""
  names = tuple(f.name for f in dataclasses.fields(cls) if f.init)
  daglish.register_node_traverser(
    cls,
    flatten_fn=lambda x: (tuple(getattr(x, n) for n in names), None),
    unflatten_fn=lambda values, _: cls(**dict(zip(names, values, strict=True))),
    path_elements_fn=lambda _: tuple(map(daglish.Attr, names)),
  )
  return cls
