# SPDX-License-Identifier: Apache-2.0
"""Nested Python values and arrays in one `.npz` file, without pickle.

The file has the values as JSON text (`tree.json`, as bytes) and, for each
dtype, the elements of all its arrays (`<dtype>`, one-dimensional). Reading it
creates data only; it runs no code of the file.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import jax
import ml_dtypes
import numpy as np

from praxis import pytypes

_TREE = 'tree.json'
# Types that are JSON values already.
_PLAIN: tuple[type, ...] = (type(None), bool, int, float, str)


def save(file: BinaryIO, tree: Any) -> None:
  """Writes `tree` to an open file.

  `tree` consists of dicts, lists, tuples, numbers, strings, bytes, None, arrays
  and dataclasses. A dataclass is written as a dict of its fields, a subclass of
  a number, string or tuple as its base class.

  Raises:
    TypeError: a value has another type.
  """
  encoder = _Encoder()
  text = json.dumps(encoder.encode(tree), separators=(',', ':'))
  arrays = {
    _TREE: np.frombuffer(text.encode(), np.uint8),
    # Without the dtype the byte order would become that of this machine.
    **{
      name: np.concatenate(parts, dtype=parts[0].dtype)
      for name, parts in encoder.elements.items()
    },
  }
  np.savez(file, allow_pickle=False, **arrays)


def load(path: str | os.PathLike[str]) -> Any:
  """Returns the tree that `save` wrote.

  Raises:
    OSError: the file cannot be read.
    ValueError: the file is damaged, or `save` did not write it.
  """
  with pathlib.Path(path).open('rb') as file:
    # zipfile raises many kinds of errors for a damaged file.
    try:
      with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
      text = arrays.pop(_TREE).tobytes().decode()
      return _Decoder(arrays).decode(json.loads(text))
    except Exception as e:
      raise ValueError(f'{path} is damaged or no file of outputs: {e}') from e


class _Encoder:
  """Encodes values as JSON and collects the elements of arrays."""

  def __init__(self):
    # One-dimensional arrays by the name of their dtype.
    self.elements: dict[str, list[np.ndarray]] = {}
    self._sizes: dict[str, int] = {}

  def encode(self, value: Any) -> Any:
    """Returns the JSON value of `value`: itself, or {kind: content}."""
    if isinstance(value, np.generic):
      return {'scalar': self._encode_array(np.asarray(value))}
    if isinstance(value, jax.Array | np.ndarray):
      array = np.asarray(value)
      if array.dtype.hasobject:
        items = [self.encode(x) for x in array.ravel()]
        return {'objects': [items, list(array.shape)]}
      return {'array': self._encode_array(array)}
    for base in _PLAIN:
      if isinstance(value, base):
        return value if type(value) is base else base(value)
    if isinstance(value, bytes | bytearray | memoryview):
      return {'bytes': base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
      kind = 'list' if isinstance(value, list) else 'tuple'
      return {kind: [self.encode(x) for x in value]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
      fields = dataclasses.fields(value)
      value = {field.name: getattr(value, field.name) for field in fields}
    if isinstance(value, Mapping):
      kind = 'map' if isinstance(value, pytypes.NestedMap) else 'dict'
      pairs = [[self.encode(k), self.encode(v)] for k, v in value.items()]
      return {kind: pairs}
    if hasattr(value, '__array__'):  # Such as a tensor of TensorFlow.
      return self.encode(np.asarray(value))
    raise TypeError(
      'outputs must consist of dicts, lists, tuples, numbers, strings, bytes,'
      f' None, arrays and dataclasses, got a {type(value).__name__}: {value!r}'
    )

  def _encode_array(self, array: np.ndarray) -> list[Any]:
    """Returns [dtype, index of the first element, shape]."""
    name = _dtype_name(array.dtype)
    begin = self._sizes.get(name, 0)
    self._sizes[name] = begin + array.size
    elements = np.ascontiguousarray(array).reshape(-1)
    # .npy has no names for the dtypes of ml_dtypes.
    if name == array.dtype.name:
      elements = elements.view(np.dtype((np.void, array.dtype.itemsize)))
    self.elements.setdefault(name, []).append(elements)
    return [name, begin, list(array.shape)]


class _Decoder:
  """Inverse of `_Encoder`."""

  def __init__(self, elements: Mapping[str, np.ndarray]):
    self._elements = elements

  def decode(self, value: Any) -> Any:
    if not isinstance(value, dict):
      return value
    ((kind, content),) = value.items()
    return self._DECODERS[kind](self, content)

  def _decode_items(self, content: Any) -> list[Any]:
    return [self.decode(x) for x in content]

  def _decode_dict(self, content: Any) -> dict[Any, Any]:
    return {self.decode(k): self.decode(v) for k, v in content}

  def _decode_objects(self, content: Any) -> np.ndarray:
    items, shape = content
    array = np.empty(len(items), object)
    array[:] = [self.decode(x) for x in items]
    return array.reshape(shape)

  def _decode_array(self, content: Any) -> np.ndarray:
    name, begin, shape = content
    elements = self._elements[name]
    size = math.prod(shape)
    if begin < 0 or size < 0 or begin + size > elements.size:
      raise ValueError(f'there are only {elements.size} values of type {name}')
    array = elements[begin : begin + size]
    if hasattr(ml_dtypes, name):
      array = array.view(np.dtype(getattr(ml_dtypes, name)))
    return array.reshape(shape).copy()

  _DECODERS: dict[str, Callable[[_Decoder, Any], Any]] = {
    'array': _decode_array,
    'bytes': lambda self, content: base64.b64decode(content, validate=True),
    'dict': _decode_dict,
    'list': _decode_items,
    'map': lambda self, x: pytypes.NestedMap(self._decode_dict(x)),
    'objects': _decode_objects,
    'scalar': lambda self, content: self._decode_array(content)[()],
    'tuple': lambda self, content: tuple(self._decode_items(content)),
  }


def _dtype_name(dtype: np.dtype) -> str:
  """Returns the name in ml_dtypes, or else the type string of numpy."""
  return dtype.name if hasattr(ml_dtypes, dtype.name) else dtype.str
