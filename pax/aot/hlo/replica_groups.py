# SPDX-License-Identifier: Apache-2.0
"""Parser of XLA's replica groups: listed, iota and mesh-axes notation.

A device's number is its index in the flattened mesh, the last axis fastest.
"""

from __future__ import annotations

import math
import re

import numpy as np
from jaxtyping import Int

_LISTED = re.compile(
  r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}'
)
_IOTA = re.compile(r'replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)')
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\]'
  r'(?:, device_ids=\(([^()]*(?:\([^()]*\))?)\))? \{([^}]*)\}'
)
_DEVICE_ORDER = re.compile(r'\[([\d,]+)\](?:T\(([\d,]+)\))?')
_IOTA_FIELDS = re.compile(r'\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
# 'a':(2)4 is a sub-axis: size 4, after a leading factor of 2.
_GROUPED_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")

Groups = Int[np.ndarray, 'groups devices']


def parse(attributes: str, num_devices: int) -> Groups | None:
  """Returns the device numbers of each group.

  Args:
    attributes: the attributes of a collective instruction.
    num_devices: devices of the program; they all form one group if the
      attribute is `{}`.

  Returns:
    One row per group; None if the notation is unknown.
  """
  if match := _LISTED.search(attributes):
    rows = re.findall(r'\{([\d, ]+)\}', match[1])
    return np.array([[int(n) for n in row.split(',')] for row in rows])
  if match := _IOTA.search(attributes):
    return _parse_iota(match[1])
  if match := _MESH.search(attributes):
    return _parse_mesh(*match.groups())
  if 'replica_groups={}' in attributes:
    return np.arange(num_devices)[None]
  return None


def _integers(text: str) -> list[int]:
  return [int(n) for n in text.split(',') if n]


def _parse_iota(text: str) -> Groups:
  """[2,4]<=[4,2]T(1,0): an iota of shape [4,2], transposed, reshaped [2,4]."""
  [(shape, iota_shape, permutation)] = _IOTA_FIELDS.findall(text)[:1]
  iota_dims = _integers(iota_shape)
  ids = np.arange(math.prod(iota_dims)).reshape(iota_dims)
  if permutation:
    ids = ids.transpose(_integers(permutation))
  return ids.reshape(_integers(shape))


def _parse_device_order(text: str | None, count: int) -> np.ndarray:
  """[2,4]T(1,0): an iota of shape [2,4], transposed; or a list of numbers."""
  if not text:
    return np.arange(count)
  if match := _DEVICE_ORDER.fullmatch(text):
    ids = np.arange(count).reshape(_integers(match[1]))
    return ids.transpose(_integers(match[2])) if match[2] else ids
  return np.array(_integers(text))


def _parse_mesh(axes: str, device_order: str | None, grouped: str) -> Groups:
  """mesh['a'=4,'b'=2] {'a'}: groups along `a`, one per index of `b`."""
  names: list[str] = []
  sizes: list[int] = []
  grouped_dims: list[int] = []
  sub_axes = {
    name: (before, size)
    for name, before, size in _GROUPED_AXIS.findall(grouped)
  }
  for name, axis_size in _MESH_AXIS.findall(axes):
    if name in sub_axes and sub_axes[name][0]:
      before, size = map(int, sub_axes[name])
      factors = [before, size, int(axis_size) // before // size]
      grouped_dims.append(len(names) + 1)
    else:
      factors = [int(axis_size)]
      grouped_dims += [len(names)] if name in sub_axes else []
    names += [name] * len(factors)
    sizes += factors
  ids = _parse_device_order(device_order, math.prod(sizes)).reshape(sizes)
  other_dims = [i for i in range(len(sizes)) if i not in grouped_dims]
  group_size = math.prod(sizes[i] for i in grouped_dims)
  return ids.transpose([*other_dims, *grouped_dims]).reshape(-1, group_size)
