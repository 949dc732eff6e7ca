# SPDX-License-Identifier: Apache-2.0
"""Which devices a collective joins: the spellings of XLA, as arrays of numbers.

A device's number is its place in the mesh, the last axis running fastest.
"""

from __future__ import annotations

import math
import re

import numpy as np

_LISTED = re.compile(
  r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}'
)
_IOTA = re.compile(r'replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)')
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\]'
  r'(?:, device_ids=\(([^()]*(?:\([^()]*\))?)\))? \{([^}]*)\}'
)
_ORDER = re.compile(r'\[([\d,]+)\](?:T\(([\d,]+)\))?')
_IOTA_PARTS = re.compile(r'\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_AXIS = re.compile(r"'([^']+)'=(\d+)")
# A part of an axis: 'a':(2)4 is its 4 places after the first factor of 2.
_AXIS_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def parse(attributes: str, num_devices: int) -> np.ndarray | None:
  """Returns the groups as rows; None for a spelling that is not known.

  No group named is all devices together.
  """
  if found := _LISTED.search(attributes):
    rows = re.findall(r'\{([\d, ]+)\}', found[1])
    return np.array([[int(n) for n in row.split(',')] for row in rows])
  if found := _IOTA.search(attributes):
    return _iota(found[1])
  if found := _MESH.search(attributes):
    return _mesh(found[1], found[2], found[3])
  if 'replica_groups={}' in attributes:
    return np.arange(num_devices)[None]
  return None


def _numbers(text: str) -> list[int]:
  return [int(n) for n in text.split(',') if n]


def _iota(text: str) -> np.ndarray:
  """[2,4]<=[4,2]T(1,0): 0, 1, ... of shape [4,2], transposed, as [2,4]."""
  shape, source, order = _IOTA_PARTS.match(text).groups()
  found = np.arange(math.prod(_numbers(source))).reshape(_numbers(source))
  if order:
    found = found.transpose(_numbers(order))
  return found.reshape(_numbers(shape))


def _ordered(devices: str | None, count: int) -> np.ndarray:
  """[2,4]T(1,0): 0 to 7 of shape [2,4], transposed; or every number."""
  if not devices:
    return np.arange(count)
  if found := _ORDER.fullmatch(devices):
    shape = _numbers(found[1])
    ids = np.arange(count).reshape(shape)
    return ids.transpose(_numbers(found[2])) if found[2] else ids
  return np.array(_numbers(devices))


def _mesh(axes: str, devices: str | None, used: str) -> np.ndarray:
  """mesh['a'=4,'b'=2] {'a'}: groups along `a`, one for each place of `b`.

  `devices` is the order of the devices in that mesh, if it is not their own.
  """
  names, sizes = [], []
  parts = {name: (pre, size) for name, pre, size in _AXIS_USED.findall(used)}
  grouped = []
  for name, total in _AXIS.findall(axes):
    if name in parts and parts[name][0]:
      before, size = int(parts[name][0]), int(parts[name][1])
      split = [before, size, int(total) // before // size]
      grouped.append(len(names) + 1)
    else:
      split = [int(total)]
      grouped += [len(names)] if name in parts else []
    names += [name] * len(split)
    sizes += split
  count = math.prod(sizes)
  ids = _ordered(devices, count).reshape(sizes)
  others = [i for i in range(len(sizes)) if i not in grouped]
  size = math.prod(sizes[i] for i in grouped)
  return ids.transpose([*others, *grouped]).reshape(-1, size)
