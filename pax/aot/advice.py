# SPDX-License-Identifier: Apache-2.0
"""What is odd about a compiled step, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pax.aot import collectives, memory, report

_GIB = 2**30
_MIB = 2**20
# All-gathers that send less are not worth a word.
_SMALL = 64 * _MIB
# XLA counts a few percent more than products and elementwise operations.
_MUCH_REPEATED = 1.3


def warnings(
  arrays: Sequence[memory.Held],
  found: Sequence[collectives.Collective],
  flops: report.Flops | None,
  num_devices: int,
) -> list[str]:
  """Returns a sentence for each thing that costs and may not be meant."""
  told = list(_whole_arrays(arrays)) if num_devices > 1 else []
  told += _silent_gathers(arrays, found, num_devices)
  if flops and flops.repeated and flops.repeated > _MUCH_REPEATED:
    told.append(
      f'devices compute {flops.repeated:.1f} times what the step needs: parts'
      ' of it are not split over the mesh'
    )
  return told


def to_fit(one: memory.Memory, arrays: Sequence[memory.Held]) -> list[str]:
  """Returns the changes that would help most, the largest first."""
  whole = [a for a in arrays if a.is_large_and_whole]
  split = 'split the state over more devices with --set ICI_MESH_SHAPE=...'
  if whole:
    paths = ', '.join(a.path for a in whole[:3])
    split += f', or split what every device holds whole: {paths}'
  shares = [
    (one.optimizer, 'Adafactor keeps less than Adam; or ' + split),
    (one.parameters, split),
    (
      one.activations or 0.0,
      'keep less for the backward pass: --set'
      ' CHECKPOINT_POLICY=AutodiffCheckpointType.SAVE_NOTHING, or fewer rows'
      ' with --set PERCORE_BATCH_SIZE=...',
    ),
    (
      one.temporaries or 0.0,
      'fewer rows with --set PERCORE_BATCH_SIZE=..., shorter ones with --set'
      ' MAX_SEQ_LEN=..., or more devices along mdl',
    ),
  ]
  shares.sort(key=lambda share: -share[0])
  return [f'{size / _GIB:.2f} GiB: {text}' for size, text in shares[:3] if size]


def _whole_arrays(arrays: Sequence[memory.Held]) -> Iterator[str]:
  for array in arrays:
    if array.is_large_and_whole:
      yield (
        f'{array.path} {list(array.shape)} is whole on every device:'
        f' {array.num_bytes / _MIB:.0f} MiB'
      )


def _silent_gathers(
  arrays: Sequence[memory.Held],
  found: Sequence[collectives.Collective],
  num_devices: int,
) -> Iterator[str]:
  """All-gathers of what is no weight: the shardings around it disagree."""
  sizes = {_size(array.shape) for array in arrays}
  told: dict[str, float] = {}
  for one in found:
    if one.kind == 'all-gather' and not _is_weight(one, sizes, num_devices):
      sent = one.times * (one.ici_bytes + one.dcn_bytes)
      name = one.op_name.removeprefix('jit(train_step)/')
      told[name] = told.get(name, 0.0) + sent
  for name, sent in sorted(told.items(), key=lambda item: -item[1]):
    if sent >= _SMALL:
      yield (
        f'an all-gather that no weight explains sends {sent / _MIB:.0f} MiB a'
        f' step: {name}'
      )


def _is_weight(
  one: collectives.Collective, sizes: set[int], num_devices: int
) -> bool:
  """Whether what is gathered may be a weight, or a layer's or shard's part."""
  elements = one.result_elements
  return any(
    size % elements == 0 and size // elements <= num_devices * _MOST_LAYERS
    for size in sizes
  )


# Weights of repeated layers are one array, gathered layer by layer.
_MOST_LAYERS = 256


def _size(shape: Sequence[int]) -> int:
  size = 1
  for dim in shape:
    size *= dim
  return size
