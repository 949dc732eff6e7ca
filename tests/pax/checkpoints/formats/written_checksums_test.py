# SPDX-License-Identifier: Apache-2.0
"""Checksums from memory are those of the files that TensorStore writes."""

# bazel: size=medium
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pax import checkpoints
from pax.checkpoints.formats import (
  array_reader,
  chunk_index,
  database_writer,
  manifest,
  orbax_format,
  tensorstore_format,
  written_checksums,
)
from tests.testing import saved_states, trees

_DTYPES = (
  'float32', 'float16', 'bfloat16', 'float8_e4m3fn', 'bool', 'int4', 'int8',
  'uint16', 'int32', 'complex64',
)  # fmt: skip


@pytest.fixture
def bytes_read(monkeypatch):
  """Sizes of the parts of files that are read for their checksums."""
  sizes = []
  checksum = manifest.checksum

  def counted(directory, name, start, size):
    sizes.append(size)
    return checksum(directory, name, start, size)

  monkeypatch.setattr(manifest, 'checksum', counted)
  monkeypatch.setattr(written_checksums, '_MIN_ARRAY_BYTES', 1)
  return sizes


def _write(tmp_path, state):
  path = tmp_path / 'tmp_checkpoint_00000001'
  path.mkdir()
  snapshot = orbax_format.Snapshot(state)
  return path, snapshot, snapshot.write(path)


@pytest.mark.parametrize('spec', [(), ('x',), (None, 'x'), ('y', None, 'x')])
@pytest.mark.parametrize('chunk_bytes', [6000, 2**20])
def test_every_dtype_and_sharding(
  tmp_path, monkeypatch, bytes_read, spec, chunk_bytes
):
  # Smaller chunks are not consecutive in the memory of a shard.
  monkeypatch.setattr(tensorstore_format, 'MAX_CHUNK_BYTES', chunk_bytes)
  mesh = jax.make_mesh((2, 2), ('x', 'y'), devices=jax.devices()[:4])
  values = np.random.default_rng(0).integers(0, 2, (8, 12, 4))
  arrays = {name: jnp.asarray(values, name) for name in _DTYPES}
  arrays |= {'large': jnp.arange(8 * 1200 * 4.0).reshape(8, 1200, 4)}
  state = jax.device_put(arrays, NamedSharding(mesh, P(*spec)))
  state |= {'scalar': jnp.int32(5)}
  path, _, entries = _write(tmp_path, state)
  from_memory = sum(size for size, _ in entries.values()) - sum(bytes_read)
  assert entries == manifest.file_entries(path, entries)
  if chunk_bytes > 6000:
    assert from_memory >= state['large'].nbytes


def test_only_the_nodes_of_the_database_are_read(tmp_path, bytes_read):
  state = {f'w{i}': jnp.full((2**15,), i, jnp.float32) for i in range(8)}
  _, _, entries = _write(tmp_path, state)
  num_bytes = sum(size for size, _ in entries.values())
  assert num_bytes > 2**20
  assert 0 < sum(bytes_read) < 2**14


def test_a_bit_that_is_written_wrongly_is_found(tmp_path, monkeypatch):
  write_database = database_writer.write
  damaged = []

  def write(folder, *args, **kwargs):
    write_database(folder, *args, **kwargs)
    file = max((folder / 'd').iterdir(), key=lambda file: file.stat().st_size)
    saved_states.flip_bit(file, 4 * file.stat().st_size)
    damaged.append(file.name)

  monkeypatch.setattr(database_writer, 'write', write)
  state = {'w': jnp.arange(2.0**19)}
  path, snapshot, entries = _write(tmp_path, state)
  entries |= snapshot.finish(path, {'step': 1})
  data = {
    name: entries[name] for name in tensorstore_format.data_files(entries)
  }
  reader = array_reader.ArrayReader(path, data, chunk_index.read_database(path))
  with pytest.raises(checkpoints.CorruptCheckpointError, match=damaged[0]):
    reader.read(reader.find(trees.abstract(state)), data)
