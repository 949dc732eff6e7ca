# SPDX-License-Identifier: Apache-2.0
"""Replicated train states as one msgpack file.

The file is `{'state': {leaf name: array}, 'metadata': {...}, 'train_input':
{process: JSON}, 'crc32': number}`, serialized by Flax. Its last four bytes are
the number: the CRC-32 of all bytes before them. Files of older versions have no
`crc32`, and checksums of the leaves in the metadata.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from isal import isal_zlib

from pax.checkpoints.formats import manifest, tensorstore_format
from pax.checkpoints.types import CheckpointError, CorruptCheckpointError
from pax.files import storage

Path = pathlib.Path

_CHECKSUM = 'crc32'
_CHECKSUM_BYTES = 4
# msgpack of the key and of the type of an unsigned number of four bytes.
_CHECKSUM_MARK = b'\xa5crc32\xce'
_KEYS = {'state', 'metadata', 'train_input'}


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
  """Writes a checkpoint with its checksum to one file.

  Args:
    file: The file.
    state: Arrays by leaf name.
    metadata: Metadata of the checkpoint.
    train_input: Input states by process, as JSON.
  """
  from flax import serialization

  data = serialization.msgpack_serialize(
    {
      'state': dict(state),
      'metadata': dict(metadata),
      'train_input': dict(train_input),
      _CHECKSUM: 2**32 - 1,
    },
    # Keeps the order of the keys: the checksum comes last.
    in_place=True,
  )
  body = memoryview(data)[:-_CHECKSUM_BYTES]
  with file.open('wb') as stream:
    stream.write(body)
    stream.write(_checksum(body))


def read(
  file: storage.Path,
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, str]]:
  """Returns the state by leaf name, the metadata and the input states.

  Raises:
    CorruptCheckpointError: The file cannot be read, or a checksum differs.
  """
  from flax import serialization

  data = file.read_bytes()
  body = memoryview(data)[:-_CHECKSUM_BYTES]
  has_checksum = bytes(body[-len(_CHECKSUM_MARK) :]) == _CHECKSUM_MARK
  if has_checksum and data[-_CHECKSUM_BYTES:] != _checksum(body):
    raise CorruptCheckpointError(
      f'{file} is not what was written (its checksum differs)'
    )
  try:
    tree = serialization.msgpack_restore(data)
    tree.pop(_CHECKSUM) if has_checksum else _check_leaves(tree)
    if set(tree) != _KEYS:
      raise ValueError(f'it has the keys {sorted(map(repr, tree))}')
    for text in tree['train_input'].values():
      json.loads(text)
  # A parser of damaged bytes may raise anything.
  except Exception as e:
    raise CorruptCheckpointError(
      f'{file} is not a msgpack checkpoint of Flax ({type(e).__name__}: {e})'
    ) from e
  return tree['state'], tree['metadata'], tree['train_input']


def place(
  state: Mapping[str, np.ndarray],
  abstract: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
  """Returns the leaves on the devices of their shardings."""
  return {
    name: tensorstore_format.place(leaf, state[name].__getitem__)
    for name, leaf in abstract.items()
  }


def _to_host(leaf: jax.Array) -> np.ndarray:
  if leaf.is_fully_replicated:
    return np.array(leaf.addressable_shards[0].data)
  return np.array(leaf)


def _checksum(body: memoryview) -> bytes:
  return isal_zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, 'big')


def _check_leaves(tree: Mapping[str, Any]) -> None:
  """Compares the checksums of leaves in a file of an older version.

  Raises:
    ValueError: One differs.
  """
  checksums = tree['metadata'][_CHECKSUM]
  for name in tree['state'].keys() | checksums.keys():
    if manifest.entry(tree['state'][name])[1] != checksums[name]:
      raise ValueError(f'the checksum of {name} differs')
