# SPDX-License-Identifier: Apache-2.0
"""A train state as one msgpack file, for states that every device holds whole.

The file is `{'state': {leaf name: array}, 'metadata': {...}, 'train_input':
{process: JSON}}`, as Flax serialises it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pax.checkpoints import manifest
from pax.checkpoints.types import CheckpointError, CorruptCheckpointError

Path = pathlib.Path


def snapshot(named: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
  """Copies the whole state to the host of process 0; elsewhere nothing."""
  for name, leaf in named.items():
    if not (leaf.is_fully_replicated or leaf.is_fully_addressable):
      raise CheckpointError(
        f'{name} is divided among hosts ({leaf.sharding}), which one file'
        ' cannot hold; use --pmap_use_tensorstore'
      )
  if jax.process_index():
    return {}
  for leaf in named.values():
    leaf.addressable_shards[0].data.copy_to_host_async()
  return {name: _to_host(leaf) for name, leaf in named.items()}


def write(
  file: Path,
  state: dict[str, np.ndarray],
  metadata: Mapping[str, Any],
  train_input: Mapping[str, str],
) -> None:
  """Writes all of it, and the checksums of the state, to one file."""
  from flax import serialization

  sums = {name: _checksum(array) for name, array in state.items()}
  file.write_bytes(
    serialization.msgpack_serialize(
      {
        'state': state,
        'metadata': {**metadata, 'crc32': sums},
        'train_input': dict(train_input),
      }
    )
  )


def read(
  file: Path,
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, str]]:
  """The state by leaf name, the metadata and the inputs' states."""
  from flax import serialization

  try:
    tree = serialization.msgpack_restore(file.read_bytes())
    state, metadata = tree['state'], tree['metadata']
  except (ValueError, KeyError, TypeError) as e:
    raise CorruptCheckpointError(
      f'{file} is not a checkpoint that Flax can read ({type(e).__name__}: {e})'
    ) from e
  for name, wanted in metadata['crc32'].items():
    if name not in state or _checksum(state[name]) != wanted:
      raise CorruptCheckpointError(
        f'{name} in {file} is not what was written (its checksum differs)'
      )
  return state, metadata, tree['train_input']


def place(
  state: Mapping[str, np.ndarray],
  abstract: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
  """Puts each leaf on the devices of its sharding."""
  return {
    name: jax.make_array_from_callback(
      tuple(wanted.shape),
      wanted.sharding
      or jax.sharding.SingleDeviceSharding(jax.local_devices()[0]),
      lambda index, name=name: state[name][index],
    )
    for name, wanted in abstract.items()
  }


def _to_host(leaf: jax.Array) -> np.ndarray:
  whole = leaf.addressable_shards[0].data if leaf.is_fully_replicated else leaf
  return np.array(whole)


def _checksum(array: np.ndarray) -> int:
  return manifest.entry(array)[1]
