# SPDX-License-Identifier: Apache-2.0
"""Index of OCDBT databases that TensorStore writes."""

from __future__ import annotations

import pytest
import tensorstore as ts

from pax import checkpoints
from pax.checkpoints import ocdbt_index


def _write(folder, values, max_node_bytes):
  store = ts.KvStore.open(
    {
      'driver': 'ocdbt',
      'base': {'driver': 'file', 'path': f'{folder}/'},
      'config': {
        'max_decoded_node_bytes': max_node_bytes,
        'max_inline_value_bytes': 8,
      },
    }
  ).result()
  with ts.Transaction() as transaction:
    for key, value in values.items():
      store.with_transaction(transaction).write(key, value).result()


# A single node, and a tree of several levels.
@pytest.mark.parametrize('max_node_bytes', [10**6, 400])
def test_values_and_their_locations(tmp_path, max_node_bytes):
  folder = tmp_path / 'a:b%20c'
  folder.mkdir()
  values = {f'layer:{i % 7}/{i:03d}': b'x' * i for i in range(1, 100)}
  _write(folder, values, max_node_bytes)
  index = ocdbt_index.read(folder)
  assert {key for key, x in index.items() if isinstance(x, bytes)} == {
    key for key, x in values.items() if len(x) <= 8
  }
  assert values == {
    key: x
    if isinstance(x, bytes)
    else (folder / x.file).read_bytes()[x.offset : x.end]
    for key, x in index.items()
  }


def test_damage_is_an_error(tmp_path):
  _write(tmp_path, {'key': b'value'}, 10**6)
  for file in (tmp_path / 'd').iterdir():
    file.write_bytes(bytes(file.stat().st_size))
  with pytest.raises(checkpoints.CorruptCheckpointError, match='TensorStore'):
    ocdbt_index.read(tmp_path)
