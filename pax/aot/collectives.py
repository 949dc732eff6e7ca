# SPDX-License-Identifier: Apache-2.0
"""What the devices tell each other in a step: kind, mesh axes, link, bytes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pax.aot import groups, hlo

KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
# Between slices of TPUs hosts send; what a transfer is part of is said beside.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_ONE_TO_ONE = 'one-to-one'
# How the TPU compiler calls what it makes of all-reduce and slice.
_FUSED_REDUCE_SCATTER = 'all-reduce-scatter'
_ASYNC = ('async', '-start')
# GPUs start and await also what nothing is scheduled between.
_SYNC = '"is_sync":true'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
  """One collective instruction, in one step of the program."""

  kind: str
  # Mesh axes along which devices are joined, as (data, mdl).
  axes: tuple[str, ...]
  # How often it runs in a step.
  times: int
  # Bytes that each device sends when it runs once, within a slice and between
  # slices, by the algorithms that need least: rings.
  ici_bytes: float
  dcn_bytes: float
  # Dimensions of the torus that the devices lie along, 1 at least.
  torus_dims: int
  # Whether the ring closes: else links are used one way.
  is_ring: bool
  # Whether other instructions run meanwhile.
  is_async: bool
  # Elements of one operand of the largest, and of the result of that.
  elements: int
  result_elements: int
  # Where in the model it is from.
  op_name: str


@dataclasses.dataclass(frozen=True)
class Place:
  """Where the devices of a program are."""

  axis_names: tuple[str, ...]
  # Devices along each axis, and how many slices those are in.
  shape: tuple[int, ...]
  slices: tuple[int, ...]
  # Coordinates of each device in its slice's torus, or None.
  coords: np.ndarray | None
  # Sides of the torus of a slice.
  torus: tuple[int, ...]
  # The host of each device, where hosts are what slices are of TPUs.
  hosts: np.ndarray | None = None

  @classmethod
  def of(
    cls, mesh: Any, dcn: Sequence[int] | None, torus: Sequence[int]
  ) -> Place:
    """The place of the devices of a mesh that is ICI x `dcn`."""
    devices = list(mesh.devices.flat)
    known = bool(torus) and all(hasattr(d, 'coords') for d in devices)
    shape = tuple(mesh.devices.shape)
    has_hosts = devices[0].platform == 'gpu'
    return cls(
      tuple(mesh.axis_names),
      shape,
      tuple(dcn) if dcn else (1,) * len(shape),
      np.array([d.coords for d in devices]) if known else None,
      tuple(torus),
      np.array([d.process_index for d in devices]) if has_hosts else None,
    )

  def coordinates(self, ids: np.ndarray) -> np.ndarray:
    """Place in the mesh of each device: [device, axis]."""
    return np.stack(np.unravel_index(ids, self.shape), axis=-1)

  def slice_of(self, ids: np.ndarray) -> np.ndarray:
    """Number of the slice, or of the host, of each device."""
    if self.hosts is not None:
      return self.hosts[ids]
    per_slice = np.array(self.shape) // np.array(self.slices)
    return np.ravel_multi_index(
      tuple((self.coordinates(ids) // per_slice).T), self.slices
    )


def find(module: hlo.Module, place: Place) -> list[Collective]:
  """Returns the collectives of a program, in order; those of one device not."""
  found = []
  for visit in module.visits():
    if visit.instruction.opcode == 'send':
      found.append(_transfer(visit, place))
    kind = visit.instruction.opcode.removesuffix('-start')
    if kind in KINDS:
      found.append(_collective(visit, kind, place))
  return [one for one in found if one]


def by_kind_and_axes(
  found: Iterable[Collective],
) -> dict[tuple[str, tuple[str, ...]], tuple[int, float, float]]:
  """(kind, axes) -> times, bytes over ICI, over DCN; the most bytes first."""
  total: dict[Any, tuple[int, float, float]] = {}
  for one in found:
    times, ici, dcn = total.get((one.kind, one.axes), (0, 0.0, 0.0))
    total[one.kind, one.axes] = (
      times + one.times,
      ici + one.times * one.ici_bytes,
      dcn + one.times * one.dcn_bytes,
    )
  order = sorted(total.items(), key=lambda item: -sum(item[1][1:]))
  return dict(order)


def _collective(visit: hlo.Visit, kind: str, place: Place) -> Collective | None:
  one, computation = visit.instruction, visit.computation
  if kind == 'all-reduce' and computation.name.startswith(
    _FUSED_REDUCE_SCATTER
  ):
    kind = 'reduce-scatter'
  count = math.prod(place.shape)
  rows = groups.parse(one.attributes, count)
  if rows is None:
    rows = np.arange(count)[None]
  operands = [computation.instructions[name] for name in one.operands]
  sent = sum(operand.num_bytes for operand in operands)
  rows = rows[rows[:, 0] != rows[:, -1]]
  if not rows.size or not sent:
    return None
  axes, per_slice, num_slices = _extent(rows, place)
  ici, dcn = _sent(kind, sent, per_slice, num_slices)
  largest = max(operands, key=lambda operand: operand.num_bytes)
  torus_dims, is_ring = _torus(rows[0], place)
  elements = sum(t.size for t in largest.types)
  grows = per_slice * num_slices if kind == 'all-gather' else 1
  return Collective(
    kind=kind,
    axes=axes,
    times=visit.times,
    ici_bytes=ici,
    dcn_bytes=dcn,
    torus_dims=torus_dims,
    is_ring=is_ring,
    is_async=_SYNC not in one.attributes
    and any(word in one.opcode + computation.name for word in _ASYNC),
    elements=elements,
    result_elements=elements * grows,
    op_name=one.op_name,
  )


def _transfer(visit: hlo.Visit, place: Place) -> Collective | None:
  """What a host sends to those of other slices for its devices."""
  one = visit.instruction
  told = _TRANSFER.search(one.attributes)
  if told is None:
    return None
  kind = told[1].lower().replace('_', '-')
  kind = 'collective-permute' if kind == _ONE_TO_ONE else kind
  operand = visit.computation.instructions[one.operands[0]]
  slices = math.prod(place.slices)
  elements = sum(t.size for t in operand.types)
  return Collective(
    kind=kind,
    axes=tuple(
      name
      for name, count in zip(place.axis_names, place.slices, strict=True)
      if count > 1
    ),
    times=visit.times,
    ici_bytes=0.0,
    dcn_bytes=_sent(kind, operand.num_bytes, 1, slices)[1],
    torus_dims=1,
    is_ring=True,
    is_async=True,
    elements=elements,
    result_elements=elements * (slices if kind == 'all-gather' else 1),
    op_name=one.op_name,
  )


def _extent(rows: np.ndarray, place: Place) -> tuple[tuple[str, ...], int, int]:
  """Axes that groups spread over, members in a slice, slices of a group."""
  coordinates = place.coordinates(rows)
  varies = (coordinates != coordinates[:, :1]).any(axis=(0, 1))
  axes = tuple(
    name for name, does in zip(place.axis_names, varies, strict=True) if does
  )
  slices = max(len(set(place.slice_of(row).tolist())) for row in rows)
  return axes, rows.shape[1] // slices, slices


def _sent(
  kind: str, operand: float, per_slice: int, slices: int
) -> tuple[float, float]:
  """Bytes each device sends within its slice and to other slices.

  Between slices go only sums of a slice's devices, each device its part.
  """
  k, s = per_slice, slices
  if kind == 'all-gather':
    return operand * s * (k - 1), operand * (s - 1)
  if kind == 'all-to-all':
    return operand * (k - 1) / (k * s), operand * (s - 1) / s
  if kind == 'collective-permute':
    return (0.0, operand) if s > 1 else (operand, 0.0)
  rounds = 2 if kind == 'all-reduce' else 1
  return (
    rounds * operand * (k - 1) / k,
    rounds * operand / k * (s - 1) / s,
  )


def _torus(ids: np.ndarray, place: Place) -> tuple[int, bool]:
  """Dimensions of the torus a group lies along, and whether they close."""
  if place.coords is None:
    return 1, True
  coords = place.coords[ids]
  sides = [
    side
    for i, side in enumerate(place.torus)
    if len(set(coords[:, i].tolist())) > 1
  ]
  # A slice's dimension is closed by switches: of 3D tori in blocks of four, of
  # 2D ones only in the largest slice.
  closed = 4 if len(place.torus) == 3 else 16
  return max(1, len(sides)), all(side % closed == 0 for side in sides)
