# SPDX-License-Identifier: Apache-2.0
"""Collectives of a compiled step: kind, mesh axes, bytes over ICI and DCN."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jaxtyping import Int

from pax.aot.hlo import async_collectives, hlo_parser, replica_groups
from praxis.layers.moe import routed_rows

# Between TPU slices the hosts send (Megascale); the transfer is annotated with
# the collective that it is a part of.
_MEGASCALE_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_ONE_TO_ONE = 'one-to-one'
# Prefix of the computation that the TPU compiler fuses an all-reduce and a
# slice into.
_FUSED_REDUCE_SCATTER = 'all-reduce-scatter'
_RAGGED_ALL_TO_ALL = 'ragged-all-to-all'
_ALL_TO_ALL = ('all-to-all', _RAGGED_ALL_TO_ALL)
_ASYNC = ('async', '-start')
# Sides of a 3D torus wrap around in blocks of 4; those of a 2D torus only at
# 16, the largest slice.
_WRAPAROUND = {3: 4, 2: 16}
# GPU collectives are start/done pairs; this one has nothing scheduled between.
_IS_SYNC = '"is_sync":true'

_DeviceIds = Int[np.ndarray, '*shape']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
  """One collective instruction of a step."""

  # Name of its instruction, of the start if it is asynchronous.
  name: str
  kind: str
  # Mesh axes that its groups span, as (data, mdl).
  axes: tuple[str, ...]
  # Executions per step.
  count: int
  # Bytes that each device sends per execution, within its slice and between
  # slices: reductions and gathers by ring algorithms; an all-to-all with the
  # bytes of other devices that it forwards.
  ici_bytes: float
  dcn_bytes: float
  # Dimensions of the torus that a group spans; at least 1.
  torus_dims: int
  # Whether those dimensions wrap around, so that links work in both directions.
  is_ring: bool
  # Whether other instructions overlap with it.
  is_async: bool
  # Elements of the largest operand on a device, and of the result from it.
  num_elements: int
  result_elements: int
  # JAX name stack and primitive.
  op_name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveTotal:
  """Total per step of the collectives of one kind along the same axes."""

  kind: str
  axes: tuple[str, ...]
  # Executions, and bytes that each device sends within and between slices.
  count: int
  ici_bytes: float
  dcn_bytes: float


@dataclasses.dataclass(frozen=True)
class MeshTopology:
  """Positions of a mesh's devices in slices, tori and hosts."""

  axis_names: tuple[str, ...]
  # Devices along each axis, and slices along each axis.
  shape: tuple[int, ...]
  dcn_shape: tuple[int, ...]
  # Coordinates of each device in its slice's torus; None: not a torus.
  coords: Int[np.ndarray, 'devices dims'] | None
  # Sides of a slice's torus.
  torus: tuple[int, ...]
  # Host of each GPU: GPU hosts count as slices. None for other platforms.
  hosts: Int[np.ndarray, ' devices'] | None = None

  @classmethod
  def from_mesh(
    cls,
    mesh: jax.sharding.Mesh,
    dcn_shape: Sequence[int] | None,
    torus: Sequence[int],
  ) -> MeshTopology:
    """Returns the topology of a mesh; `dcn_shape` None is a single slice."""
    devices = list(mesh.devices.flat)
    has_coords = bool(torus) and all(hasattr(d, 'coords') for d in devices)
    has_hosts = devices[0].platform == 'gpu'
    shape = tuple(mesh.devices.shape)
    coords = None
    if has_coords:
      # Those of a torus of two dimensions have a third, 0.
      coords = np.array([d.coords[: len(torus)] for d in devices])
    return cls(
      axis_names=tuple(mesh.axis_names),
      shape=shape,
      dcn_shape=tuple(dcn_shape) if dcn_shape else (1,) * len(shape),
      coords=coords,
      torus=tuple(torus),
      hosts=np.array([d.process_index for d in devices]) if has_hosts else None,
    )

  def mesh_coordinates(self, ids: _DeviceIds) -> Int[np.ndarray, '*shape axes']:
    """Returns each device's index along every mesh axis."""
    return np.stack(np.unravel_index(ids, self.shape), axis=-1)

  def slice_indices(self, ids: _DeviceIds) -> _DeviceIds:
    """Returns the slice of each TPU, or the host of each GPU."""
    if self.hosts is not None:
      return self.hosts[ids]
    ici_shape = np.array(self.shape) // np.array(self.dcn_shape)
    return np.ravel_multi_index(
      tuple((self.mesh_coordinates(ids) // ici_shape).T), self.dcn_shape
    )


def find_collectives(
  module: hlo_parser.Module, topology: MeshTopology
) -> list[Collective]:
  """Returns a program's collectives in scheduled order.

  Collectives whose groups hold a single device are left out.
  """
  collectives = []
  in_fusions = _started_in_fusions(module)
  offloaded = async_collectives.offloaded(module)
  for execution in module.executions():
    instruction = execution.instruction
    if instruction.opcode == 'send':
      collectives.append(_megascale_transfer(execution, topology))
    elif kind := async_collectives.kind(instruction):
      is_part = (
        execution.is_fused
        and async_collectives.identity(instruction) in in_fusions
      )
      if not is_part or async_collectives.starts_in_fusion(
        execution.computation
      ):
        is_offloaded = execution.computation.name in offloaded
        collectives.append(
          _collective(execution, kind, topology, is_offloaded=is_offloaded)
        )
  return [c for c in collectives if c]


def _started_in_fusions(module: hlo_parser.Module) -> set[str]:
  """Identities of the collectives that fusions start, continue and end."""
  return {
    async_collectives.identity(instruction)
    for computation in module.computations.values()
    if async_collectives.starts_in_fusion(computation)
    for instruction in computation.instructions.values()
    if async_collectives.kind(instruction)
  }


def totals(collectives: Iterable[Collective]) -> list[CollectiveTotal]:
  """Returns the sums by kind and axes, the most bytes first."""
  by_key: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
  for collective in collectives:
    by_key.setdefault((collective.kind, collective.axes), []).append(collective)
  sums = [
    CollectiveTotal(
      kind=kind,
      axes=axes,
      count=sum(c.count for c in group),
      ici_bytes=sum(c.count * c.ici_bytes for c in group),
      dcn_bytes=sum(c.count * c.dcn_bytes for c in group),
    )
    for (kind, axes), group in by_key.items()
  ]
  return sorted(sums, key=lambda total: -(total.ici_bytes + total.dcn_bytes))


def _collective(
  execution: hlo_parser.Execution,
  kind: str,
  topology: MeshTopology,
  *,
  is_offloaded: bool,
) -> Collective | None:
  instruction, computation = execution.instruction, execution.computation
  if computation.name.startswith(_FUSED_REDUCE_SCATTER):
    kind = 'reduce-scatter' if kind == 'all-reduce' else kind
  num_devices = math.prod(topology.shape)
  groups = replica_groups.parse(instruction.attributes, num_devices)
  if groups is None:
    groups = np.arange(num_devices)[None]
  groups = groups[groups[:, 0] != groups[:, -1]]
  operands = [computation.instructions[name] for name in instruction.operands]
  if kind == _RAGGED_ALL_TO_ALL:
    # The others are the result's other rows, and offsets and sizes.
    operands = operands[:1]
  operand_bytes = sum(operand.num_bytes for operand in operands)
  if not groups.size or not operand_bytes:
    return None
  devices_per_slice, num_slices = _group_size(groups, topology)
  ici, dcn = _sent_bytes(kind, operand_bytes, devices_per_slice, num_slices)
  if kind in _ALL_TO_ALL:
    ici *= _mean_distance(groups[0], topology)
  if kind == _RAGGED_ALL_TO_ALL:
    share = float(routed_rows.share_of(instruction.op_name))
    ici, dcn = ici * share, dcn * share
  torus_dims, is_ring = _torus_extent(groups[0], topology)
  largest = max(operands, key=lambda operand: operand.num_bytes)
  num_elements = sum(t.size for t in largest.types)
  growth = devices_per_slice * num_slices if kind == 'all-gather' else 1
  return Collective(
    name=instruction.name,
    kind=kind,
    axes=_spanned_axes(groups, topology),
    count=execution.count,
    ici_bytes=ici,
    dcn_bytes=dcn,
    torus_dims=torus_dims,
    is_ring=is_ring,
    is_async=is_offloaded or _is_async(instruction, computation),
    num_elements=num_elements,
    result_elements=num_elements * growth,
    op_name=instruction.op_name,
  )


def _is_async(
  instruction: hlo_parser.Instruction, computation: hlo_parser.Computation
) -> bool:
  if _IS_SYNC in instruction.attributes:
    return False
  if any(mark in instruction.opcode + computation.name for mark in _ASYNC):
    return True
  return async_collectives.starts_in_fusion(computation)


def _megascale_transfer(
  execution: hlo_parser.Execution, topology: MeshTopology
) -> Collective | None:
  """A `send` to other slices through the host; None for any other `send`."""
  instruction = execution.instruction
  match = _MEGASCALE_TRANSFER.search(instruction.attributes)
  if match is None:
    return None
  kind = match[1].lower().replace('_', '-')
  kind = 'collective-permute' if kind == _ONE_TO_ONE else kind
  operand = execution.computation.instructions[instruction.operands[0]]
  num_slices = math.prod(topology.dcn_shape)
  num_elements = sum(t.size for t in operand.types)
  _, dcn = _sent_bytes(kind, operand.num_bytes, 1, num_slices)
  axes = zip(topology.axis_names, topology.dcn_shape, strict=True)
  return Collective(
    name=instruction.name,
    kind=kind,
    axes=tuple(name for name, slices in axes if slices > 1),
    count=execution.count,
    ici_bytes=0.0,
    dcn_bytes=dcn,
    torus_dims=1,
    is_ring=True,
    is_async=True,
    num_elements=num_elements,
    result_elements=num_elements * (num_slices if kind == 'all-gather' else 1),
    op_name=instruction.op_name,
  )


def _spanned_axes(
  groups: replica_groups.Groups, topology: MeshTopology
) -> tuple[str, ...]:
  """The mesh axes along which the devices of a group differ."""
  coordinates = topology.mesh_coordinates(groups)
  varies = (coordinates != coordinates[:, :1]).any(axis=(0, 1))
  axes = zip(topology.axis_names, varies, strict=True)
  return tuple(name for name, is_spanned in axes if is_spanned)


def _group_size(
  groups: replica_groups.Groups, topology: MeshTopology
) -> tuple[int, int]:
  """Devices per slice of a group, and slices that a group spans."""
  num_slices = max(len(set(topology.slice_indices(g).tolist())) for g in groups)
  return groups.shape[1] // num_slices, num_slices


def _sent_bytes(
  kind: str, operand_bytes: float, devices_per_slice: int, num_slices: int
) -> tuple[float, float]:
  """Bytes that each device sends within its slice and to other slices.

  Reductions are hierarchical: a slice's devices reduce first and each sends
  its share of the sum to the other slices.
  """
  k, s = devices_per_slice, num_slices
  if kind == 'all-gather':
    return operand_bytes * s * (k - 1), operand_bytes * (s - 1)
  if kind in _ALL_TO_ALL:
    return operand_bytes * (k - 1) / (k * s), operand_bytes * (s - 1) / s
  if kind == 'collective-permute':
    return (0.0, operand_bytes) if s > 1 else (operand_bytes, 0.0)
  passes = 2 if kind == 'all-reduce' else 1
  return (
    passes * operand_bytes * (k - 1) / k,
    passes * operand_bytes / k * (s - 1) / s,
  )


def _torus_extent(
  ids: Int[np.ndarray, ' devices'], topology: MeshTopology
) -> tuple[int, bool]:
  """Returns the dimensions of the torus in a group, and whether they wrap."""
  if topology.coords is None:
    return 1, True
  coords = topology.coords[ids]
  sides = [
    side
    for dim, side in enumerate(topology.torus)
    if len(set(coords[:, dim].tolist())) > 1
  ]
  return max(1, len(sides)), all(_wraps(side, topology) for side in sides)


def _wraps(side: int, topology: MeshTopology) -> bool:
  return side % _WRAPAROUND[len(topology.torus)] == 0


def _mean_distance(
  ids: Int[np.ndarray, ' devices'], topology: MeshTopology
) -> float:
  """Returns the mean number of links between two devices of a group."""
  if topology.coords is None:
    return 1.0
  total = 0.0
  for side, values in zip(topology.torus, topology.coords[ids].T, strict=True):
    positions, counts = np.unique(values, return_counts=True)
    links = np.abs(positions[:, None] - positions)
    if _wraps(side, topology):
      links = np.minimum(links, side - links)
    total += counts @ links @ counts
  num_pairs = len(ids) * (len(ids) - 1)
  return total / num_pairs
