# SPDX-License-Identifier: Apache-2.0
"""Index of databases that TensorStore writes, and of files of leaves."""

# bazel: size=medium
from __future__ import annotations

import json

import pytest
import tensorstore as ts

from pax import checkpoints
from pax.checkpoints.formats import chunk_index


def _write(checkpoint, values, max_node_bytes, **config):
  folder = checkpoint / 'state'
  folder.mkdir(parents=True, exist_ok=True)
  # No leaf: the keys are any.
  (folder / '_METADATA').write_text('{"tree_metadata": {}}')
  store = ts.KvStore.open(
    {
      'driver': 'ocdbt',
      'base': {'driver': 'file', 'path': f'{folder}/'},
      'config': {
        'max_decoded_node_bytes': max_node_bytes,
        'max_inline_value_bytes': 8,
        **config,
      },
    }
  ).result()
  with ts.Transaction() as transaction:
    for key, value in values.items():
      store.with_transaction(transaction).write(key, value).result()


# A single node, and a tree of several levels.
@pytest.mark.parametrize('max_node_bytes', [10**6, 400])
@pytest.mark.parametrize('compression', [None, {'id': 'zstd'}])
def test_values_and_their_locations(tmp_path, max_node_bytes, compression):
  checkpoint = tmp_path / 'a:b%20c'
  values = {f'layer:{i % 7}/{i:03d}': b'x' * i for i in range(1, 100)}
  # Values of an older version.
  older = dict.fromkeys(values, b'old')
  for version in (older, values):
    _write(checkpoint, version, max_node_bytes, compression=compression)
  index = chunk_index.read_database(checkpoint).values
  assert {key for key, x in index.items() if isinstance(x, bytes)} == {
    key for key, x in values.items() if len(x) <= 8
  }
  assert values == {
    key: x
    if isinstance(x, bytes)
    else (checkpoint / x.file).read_bytes()[x.offset : x.end]
    for key, x in index.items()
  }


def test_damage_is_an_error(tmp_path):
  _write(tmp_path, {'key': b'value'}, 10**6)
  for file in (tmp_path / 'state/d').iterdir():
    file.write_bytes(bytes(file.stat().st_size))
  with pytest.raises(checkpoints.CorruptCheckpointError, match='OCDBT'):
    chunk_index.read_database(tmp_path)


@pytest.mark.parametrize('file', ['manifest.ocdbt', 'd/*'])
def test_damage_of_a_node_is_an_error(tmp_path, file):
  # All values are in the nodes.
  _write(tmp_path, {f'{i:02d}': b'x' * (i % 8) for i in range(40)}, 300)
  (path,) = (tmp_path / 'state').glob(file)
  data = path.read_bytes()
  flips = [_flipped(data, bit) for bit in range(0, 8 * len(data), 3)]
  for damaged in (*flips, data[: len(data) // 2], b''):
    path.write_bytes(damaged)
    with pytest.raises(checkpoints.CorruptCheckpointError):
      chunk_index.read_database(tmp_path)


def _flipped(data: bytes, bit: int) -> bytes:
  flipped = bytearray(data)
  flipped[bit // 8] ^= 1 << bit % 8
  return bytes(flipped)


def test_files_of_leaves(tmp_path):
  metadata = {'shape': [8, 6], 'chunks': [4, 6], 'dtype': 'bfloat16'}
  folder = tmp_path / 'state/params.w'
  folder.mkdir(parents=True)
  (folder / '.zarray').write_text(json.dumps(metadata))
  entries = {
    'metadata': (9, 0),
    'state/params.w/.zarray': (9, 0),
    'state/params.w/0.0': (48, 0),
    'state/params.w/1.0': (48, 0),
  }
  index = chunk_index.read_leaves(tmp_path, entries)
  assert index.metadata('params.w') == metadata
  assert index.metadata('params.v') is None
  assert index.shapes() == {'params.w': ((8, 6), 'bfloat16')}
  assert {
    key: x for key, x in index.values.items() if not isinstance(x, bytes)
  } == {
    f'params.w/{cell}': chunk_index.Location(f'state/params.w/{cell}', 0, 48)
    for cell in ('0.0', '1.0')
  }
