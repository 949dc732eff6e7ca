# SPDX-License-Identifier: Apache-2.0
"""Arrays read without TensorStore equal those that were saved."""

# bazel: size=medium
from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pax import checkpoints
from pax.checkpoints import paths
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.formats import (
  array_reader,
  chunk_index,
  host_arrays,
  manifest,
  orbax_format,
  tensorstore_format,
)
from tests.testing import nightly, saved_states, trees

_DTYPES = (
  *('float32', 'bfloat16', 'float16', 'bool', 'uint8', 'int8', 'uint32'),
  *('float8_e4m3fn', 'float8_e5m2', 'int4', 'complex64'),
)


def _mesh(shape):
  return jax.make_mesh(shape, ('x', 'y'), devices=jax.devices()[:4])


def _arrays(mesh, spec):
  values = np.random.default_rng(0).integers(0, 2, (8, 12, 4))
  arrays = {name: jnp.asarray(values, name) for name in _DTYPES}
  arrays |= {'large': jnp.arange(8 * 1200 * 4.0).reshape(8, 1200, 4)}
  sharded = jax.device_put(arrays, NamedSharding(mesh, P(*spec)))
  others = {'scalar': jnp.int32(5), 'empty': jnp.zeros((0, 4))}
  return sharded | jax.device_put(others, NamedSharding(mesh, P()))


def _write_database(path, state):
  snapshot = orbax_format.Snapshot(state)
  entries = snapshot.write(path) | snapshot.finish(path, {'step': 1})
  return entries, chunk_index.read_database(path)


def _write_leaves(path, state):
  entries = tensorstore_format.write(path, host_arrays.snapshot(state))
  return entries, chunk_index.read_leaves(path, entries)


_FORMATS = {'database': _write_database, 'leaves': _write_leaves}


def _write(tmp_path, state, layout='database'):
  """Returns the path, the entries of the data, and the index."""
  path = tmp_path / 'tmp_checkpoint_00000001'
  path.mkdir()
  entries, index = _FORMATS[layout](path, state)
  data = tensorstore_format.data_files(entries)
  return path, {name: entries[name] for name in data}, index


_SAVED_SPECS = [('x',), (None, 'x'), ('y', None, 'x'), ()]
_RESTORED_SPECS = [('x', 'y'), (None, None, 'y'), (None, ('x', 'y')), ()]
# Each specification with each format.
_SPECS_BY_DAY = [
  (layout, saved, _RESTORED_SPECS[(i + j) % 4])
  for i, layout in enumerate(_FORMATS)
  for j, saved in enumerate(_SAVED_SPECS)
]


@pytest.mark.parametrize(
  ('layout', 'saved_spec', 'restored_spec'),
  nightly.except_for(
    _SPECS_BY_DAY,
    itertools.product(_FORMATS, _SAVED_SPECS, _RESTORED_SPECS),
  ),
)
def test_reads_every_dtype_onto_other_shardings(
  tmp_path, monkeypatch, layout, saved_spec, restored_spec
):
  # Parts of chunks are read by several threads, and in several groups.
  monkeypatch.setattr(tensorstore_format, 'MAX_CHUNK_BYTES', 6000)
  monkeypatch.setattr(array_reader, '_TASK_BYTES', 1000)
  monkeypatch.setattr(array_reader, '_BUFFER_BYTES', 300)
  monkeypatch.setattr(array_reader, '_GROUP_BYTES', 3000)
  state = _arrays(_mesh((2, 2)), saved_spec)
  path, entries, index = _write(tmp_path, state, layout)
  abstract = trees.abstract(_arrays(_mesh((2, 2)), restored_spec))
  assert (
    index.shapes().items()
    <= {name: (x.shape, x.dtype.name) for name, x in state.items()}.items()
  )
  reader = array_reader.ArrayReader(path, entries, index)
  arrays = reader.find(abstract)
  leaves = reader.read(arrays, entries)
  saved_states.check_equal(leaves, state)
  assert all(leaves[k].sharding == abstract[k].sharding for k in leaves)


def test_reads_leaves_without_a_sharding(tmp_path):
  state = _arrays(_mesh((4, 1)), ('x',))
  path, entries, index = _write(tmp_path, state)
  abstract = {
    k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in state.items()
  }
  reader = array_reader.ArrayReader(path, entries, index)
  leaves = reader.read(reader.find(abstract), ())
  saved_states.check_equal(leaves, state)


def test_a_compressed_database_is_read_by_tensorstore(tmp_path, monkeypatch):
  """Orbax compresses by default."""
  metadata = tensorstore_format.chunked_metadata
  monkeypatch.setattr(
    tensorstore_format,
    'chunked_metadata',
    lambda array: {**metadata(array), 'compressor': {'id': 'zstd', 'level': 1}},
  )
  directory = saved_states.save(tmp_path, steps=(5,))
  path = directory / 'checkpoint_00000005'
  entries = manifest.read(path)
  abstract = trees.abstract(paths.flatten(saved_states.state(2)))
  index = chunk_index.read_database(path)
  reader = array_reader.ArrayReader(path, entries, index)
  assert not reader.find(abstract)
  read = CheckpointReader(path).read
  saved_states.check_equal(
    read(abstract), paths.flatten(saved_states.state(2, 6.0))
  )
  for file in (path / 'state/ocdbt.process_0/d').iterdir():
    saved_states.flip_bit(file, 4 * file.stat().st_size)
    with pytest.raises(checkpoints.CorruptCheckpointError, match=file.name):
      CheckpointReader(path).read(abstract)
    saved_states.flip_bit(file, 4 * file.stat().st_size)


def test_leaves_that_the_database_does_not_have_as_expected(tmp_path):
  state = {'w': jnp.ones((64, 8)), 'b': jnp.ones(4)}
  path, entries, index = _write(tmp_path, state)
  reader = array_reader.ArrayReader(path, entries, index)
  assert reader.find(trees.abstract(state))
  for other in (
    {'w': jnp.ones((64, 9))},
    {'w': jnp.ones((64, 8), jnp.int32)},
    {'v': jnp.ones((64, 8))},
  ):
    assert not reader.find(trees.abstract(other))
  sizes = {name: (8, checksum) for name, (_, checksum) in entries.items()}
  reader = array_reader.ArrayReader(path, sizes, index)
  assert not reader.find(trees.abstract(state))
