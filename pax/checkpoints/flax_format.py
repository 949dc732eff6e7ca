# SPDX-License-Identifier: Apache-2.0
"""Replicated train states as one msgpack file.

The file is `{'state': {leaf name: array}, 'metadata': {...}, 'train_input':
{process: JSON}}`, serialized by Flax.
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


def snapshot(leaves: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
  """Returns a host copy of the state; on processes other than 0 it is empty.

  Raises:
    CheckpointError: A leaf is sharded over processes.
  """
  for name, leaf in leaves.items():
    if not (leaf.is_fully_replicated or leaf.is_fully_addressable):
      raise CheckpointError(
        f'{name} is sharded over hosts ({leaf.sharding}), and one file holds'
        ' only replicated arrays; use --pmap_use_tensorstore'
      )
  if jax.process_index():
    return {}
  for leaf in leaves.values():
    leaf.addressable_shards[0].data.copy_to_host_async()
  return {name: _to_host(leaf) for name, leaf in leaves.items()}


def write(
  file: Path,
  state: dict[str, np.ndarray],
  metadata: Mapping[str, Any],
  train_input: Mapping[str, str],
) -> None:
  """Writes the state, with its checksums, to one file.

  Args:
    file: The file.
    state: Arrays by leaf name.
    metadata: Metadata of the checkpoint.
    train_input: Input states by process, as JSON.
  """
  from flax import serialization

  checksums = {name: _checksum(array) for name, array in state.items()}
  file.write_bytes(
    serialization.msgpack_serialize(
      {
        'state': state,
        'metadata': {**metadata, 'crc32': checksums},
        'train_input': dict(train_input),
      }
    )
  )


def read(
  file: Path,
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, str]]:
  """Returns the state by leaf name, the metadata and the input states.

  Raises:
    CorruptCheckpointError: The file cannot be read, or a checksum differs.
  """
  from flax import serialization

  try:
    tree = serialization.msgpack_restore(file.read_bytes())
    state, metadata = tree['state'], tree['metadata']
  except (ValueError, KeyError, TypeError) as e:
    raise CorruptCheckpointError(
      f'{file} is not a msgpack checkpoint of Flax ({type(e).__name__}: {e})'
    ) from e
  for name, checksum in metadata['crc32'].items():
    if name not in state or _checksum(state[name]) != checksum:
      raise CorruptCheckpointError(
        f'{name} in {file} is not what was written (its checksum differs)'
      )
  return state, metadata, tree['train_input']


def place(
  state: Mapping[str, np.ndarray],
  abstract: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
  """Returns the leaves on the devices of their shardings."""
  return {
    name: jax.make_array_from_callback(
      tuple(leaf.shape),
      leaf.sharding
      or jax.sharding.SingleDeviceSharding(jax.local_devices()[0]),
      lambda index, name=name: state[name][index],
    )
    for name, leaf in abstract.items()
  }


def _to_host(leaf: jax.Array) -> np.ndarray:
  if leaf.is_fully_replicated:
    return np.array(leaf.addressable_shards[0].data)
  return np.array(leaf)


def _checksum(array: np.ndarray) -> int:
  return manifest.entry(array)[1]
