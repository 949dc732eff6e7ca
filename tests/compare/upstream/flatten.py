# SPDX-License-Identifier: Apache-2.0
"""Any result as a flat dict from key path to array or JSON value."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np


def flatten(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields (key path, leaf): numpy arrays, strings, bools or None.

  Mappings, sequences and dataclasses are entered; their types are not
  compared, except that an empty one is a leaf. Nodes that stand for masked
  variables are the string "masked". Python numbers become arrays
  without a fixed dtype ("number"). Other objects become their class names.
  """
  if isinstance(value, Mapping):
    items = [(f'{path}.{k}' if path else str(k), v) for k, v in value.items()]
    yield from _children(path, sorted(items), '{}')
  elif isinstance(value, jax.sharding.PartitionSpec):
    yield path, f'PartitionSpec{significant_entries(value)}'
  elif type(value).__name__ in ('MaskedNode', 'BpropMaskedNode'):
    yield path, 'masked'
  elif hasattr(value, '_fields') and isinstance(value, tuple):
    items = [(f'{path}.{k}', getattr(value, k)) for k in value._fields]
    yield from _children(path, items, '()')
  elif isinstance(value, (list, tuple)):
    items = [(f'{path}[{i}]', v) for i, v in enumerate(value)]
    yield from _children(path, items, '()')
  elif dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = [f.name for f in dataclasses.fields(value)]
    items = [(f'{path}.{k}', getattr(value, k)) for k in fields]
    yield from _children(path, items, '{}')
  else:
    yield path, _leaf(value)


def significant_entries(spec: jax.sharding.PartitionSpec) -> tuple[Any, ...]:
  """Returns the entries without those that mean nothing at the end."""
  entries = list(spec)
  while entries and entries[-1] in (None, ()):
    entries.pop()
  return tuple(entries)


def _children(
  path: str, items: list[tuple[str, Any]], empty: str
) -> Iterator[tuple[str, Any]]:
  if not items:
    yield path, empty
  for key, value in items:
    yield from flatten(value, key)


def _leaf(value: Any) -> Any:
  if isinstance(value, enum.Enum):
    return f'{type(value).__name__}.{value.name}'
  if value is None or isinstance(value, (bool, str)):
    return value
  if isinstance(value, bytes):
    return value.decode(errors='backslashreplace')
  if isinstance(value, (int, float)):
    return float(value)
  if isinstance(value, jax.Array) and jax.dtypes.issubdtype(
    value.dtype, jax.dtypes.prng_key
  ):
    return np.asarray(jax.random.key_data(value))
  if isinstance(value, jax.ShapeDtypeStruct):
    return f'{value.dtype}{list(value.shape)}'
  if isinstance(value, type):
    return f'{value.__module__}.{value.__qualname__}'
  if isinstance(value, np.dtype):
    return str(value)
  if hasattr(value, 'dtype') and hasattr(value, 'shape'):
    array = np.asarray(value)
    return array.tolist() if array.dtype == object else array
  return f'<{type(value).__qualname__}>'
