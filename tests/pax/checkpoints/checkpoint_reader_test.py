# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Opened checkpoints: files are verified once, and damaged ones are named."""

from __future__ import annotations

import collections
import pathlib
import zlib

import jax
import numpy as np
import pytest

from pax import checkpoints
from pax.checkpoints import paths
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.formats import (
  array_reader,
  flax_format,
  manifest,
  tensorstore_format,
)
from tests.testing import saved_states, trees


def _save(tmp_path, layout):
  directory = saved_states.save_layout(tmp_path, layout, (5,), 2)
  return paths.steps(directory)[5]


def _abstract(reader, name):
  shape, dtype = reader.shapes[name]
  return {name: jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))}


@pytest.fixture
def bytes_read(monkeypatch):
  """Number of bytes that were read of each file, but for its JSON."""
  sizes = collections.Counter()
  checksum, read_span = manifest.checksum, array_reader._read_span

  def counted_part(directory, name, start, size):
    sizes[name] += size
    return checksum(directory, name, start, size)

  def counted_span(file, span):
    sizes[span.location.file] += span.location.size
    return read_span(file, span)

  monkeypatch.setattr(manifest, 'checksum', counted_part)
  monkeypatch.setattr(array_reader, '_read_span', counted_span)
  return sizes


def _file_sizes(checkpoint):
  """Returns the sizes of the files; a manifest has a checksum of its own."""
  return {
    str(file.relative_to(checkpoint)): file.stat().st_size
    for file in saved_states.files(checkpoint)
    if file.parent.name != 'manifest'
  }


@pytest.mark.parametrize('layout', ['spmd', 'pmap_tensorstore'])
def test_each_byte_is_read_once(tmp_path, bytes_read, layout):
  checkpoint = _save(tmp_path, layout)
  bytes_read.clear()
  reader = CheckpointReader(checkpoint)
  # The data are read with the leaves.
  sizes = _file_sizes(checkpoint)
  data = tensorstore_format.data_files(sizes)
  assert data and bytes_read.keys() == sizes.keys() - data
  abstract = trees.abstract(paths.flatten(saved_states.state(2)))
  saved_states.check_equal(
    reader.read(abstract), paths.flatten(saved_states.state(2, 6.0))
  )
  assert bytes_read == sizes
  reader.verify()
  assert bytes_read == sizes


def test_small_chunks_are_in_the_index(tmp_path, bytes_read):
  reader = CheckpointReader(_save(tmp_path, 'spmd'))
  reader.verify()
  bytes_read.clear()
  reader.read(_abstract(reader, 'mdl_vars.params.rows'))
  assert not bytes_read


def test_leaves_that_are_read_one_by_one_are_verified_once(
  tmp_path, bytes_read
):
  checkpoint = _save(tmp_path, 'pmap_tensorstore')
  bytes_read.clear()
  reader = CheckpointReader(checkpoint)
  for name in reader.shapes:
    value = reader.read(_abstract(reader, name))[name]
    assert value.shape == reader.shapes[name][0]
  assert reader.input_states() == {'process_0-of-1': {'examples': 5}}
  assert bytes_read == _file_sizes(checkpoint)


def test_a_file_is_read_once(tmp_path, monkeypatch):
  checkpoint = _save(tmp_path, 'pmap_one_file')
  reads = []
  read = flax_format.read
  monkeypatch.setattr(
    flax_format, 'read', lambda file: reads.append(file) or read(file)
  )
  reader = CheckpointReader(checkpoint)
  for name in reader.shapes:
    reader.read(_abstract(reader, name))
  reader.input_states()
  assert reads == [checkpoint]


@pytest.mark.parametrize('layout', ['spmd', 'pmap_tensorstore'])
def test_damage_after_opening_is_found_by_every_read(tmp_path, layout):
  checkpoint = _save(tmp_path, layout)
  reader = CheckpointReader(checkpoint)
  rows = 'mdl_vars.params.rows'
  pattern = 'ocdbt.process_0/d/*' if layout == 'spmd' else f'{rows}/0.0'
  (file,) = (checkpoint / 'state').glob(pattern)
  saved_states.flip_bit(file, 8 * file.stat().st_size // 2)
  for _ in range(2):
    with pytest.raises(checkpoints.CorruptCheckpointError, match=str(file)):
      reader.read(_abstract(reader, rows))
    with pytest.raises(checkpoints.CorruptCheckpointError, match=str(file)):
      reader.verify()
  assert reader.read({}) == {}


def test_damage_of_the_index_after_opening_is_found(tmp_path):
  checkpoint = _save(tmp_path, 'spmd')
  reader = CheckpointReader(checkpoint)
  (file,) = checkpoint.glob('state/d/*')
  saved_states.flip_bit(file, 8 * file.stat().st_size // 2)
  with pytest.raises(checkpoints.CorruptCheckpointError, match=str(file)):
    reader.read(_abstract(reader, 'mdl_vars.params.rows'))


def test_another_model_is_an_error_before_the_data_are_read(
  tmp_path, bytes_read
):
  reader = CheckpointReader(_save(tmp_path, 'spmd'))
  bytes_read.clear()
  step = _abstract(reader, 'step')
  with pytest.raises(checkpoints.CheckpointError, match='is not in the model'):
    reader.read(step, is_full=True)
  with pytest.raises(checkpoints.CheckpointError, match='w is not in it'):
    reader.read({'w': step['step']})
  assert not bytes_read


@pytest.mark.parametrize('layout', ['spmd', 'pmap_tensorstore'])
def test_large_arrays_are_read_to_aligned_memory(tmp_path, monkeypatch, layout):
  monkeypatch.setattr(tensorstore_format, '_ALIGNED_BYTES', 6)
  arrays = []
  empty = tensorstore_format.empty_aligned
  monkeypatch.setattr(
    tensorstore_format,
    'empty_aligned',
    lambda shape, dtype: arrays.append(empty(shape, dtype)) or arrays[-1],
  )
  saved_states.save_layout(tmp_path, layout)
  abstract = trees.abstract(saved_states.state(2))
  restored = saved_states.checkpointer(tmp_path).restore(abstract)
  saved_states.check_equal(restored.state, saved_states.state(2, 6.0))
  sizes = {x.nbytes for x in arrays if x.ctypes.data % 64 == 0}
  # bfloat16[3], halves of float32[8, 3] and of float32[16, 24].
  assert sizes >= {6, 48, 768}


@pytest.mark.parametrize('size', [0, 1, 99, 100, 101, 1000])
@pytest.mark.parametrize('buffer', [7, 1000])
def test_checksums_of_files_are_those_of_zlib(
  tmp_path, monkeypatch, size, buffer
):
  monkeypatch.setattr(manifest, '_PART_BYTES', 100)
  monkeypatch.setattr(manifest, '_BUFFER_BYTES', buffer)
  data = np.random.default_rng(size).bytes(size)
  pathlib.Path(tmp_path, 'a').write_bytes(data)
  entries = manifest.file_entries(tmp_path, ['a'])
  assert entries == {'a': (size, zlib.crc32(data))}
  manifest.verify(tmp_path, entries)
