# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Arrays and databases as TensorStore has them."""

from __future__ import annotations

import copy
import shutil
import types

import jax.numpy as jnp
import pytest
import tensorstore as ts

from pax.checkpoints.formats import (
  chunk_index,
  database_writer,
  tensorstore_format,
)


def open_database(folder, **settings):
  base = {'driver': 'file', 'path': f'{folder}/'}
  return ts.KvStore.open({'driver': 'ocdbt', 'base': base, **settings}).result()


def test_a_database_refers_to_those_of_other_folders(tmp_path):
  values = {f'{i}/{leaf}': bytes(5000) for i in range(3) for leaf in 'ab'}
  small = {f'{i}/.zarray': b'{}' * 250 for i in range(3)}
  values |= small
  folders = [tmp_path / name for name in ('own', 'second', 'third')]
  parts = {
    f'part_{i}': folder / f'part_{i}' for i, folder in enumerate(folders)
  }
  for i, part in enumerate(parts.values()):
    part.mkdir(parents=True)
    transaction = ts.Transaction()
    # As Orbax writes it.
    config = {'max_inline_value_bytes': 1024, 'max_decoded_node_bytes': 10**8}
    database = open_database(part, config=config).with_transaction(transaction)
    for key, value in values.items():
      if key.startswith(f'{i}/'):
        database.write(key, value).result()
    transaction.commit_async().result()
  own = folders[0]
  database_writer.merge(own, parts, {})
  # The values stay where they are.
  assert sum(file.stat().st_size for file in own.glob('d/*')) < 5000
  for name, part in parts.items():
    if part.parent != own:
      shutil.copytree(part, own / name)
  merged = open_database(own)
  assert {
    key.decode(): merged.read(key).result().value
    for key in merged.list().result()
  } == values
  # Readers take the metadata of arrays from the index.
  index = chunk_index.read_values(tmp_path, own.name)
  assert {k: v for k, v in index.items() if isinstance(v, bytes)} == small


@pytest.mark.parametrize(
  ('dtype', 'name'), [('uint32', '<u4'), ('bool', '|b1'), ('bfloat16', None)]
)
def test_copies_of_dtypes_are_written_as_they_are(dtype, name):
  """A step that was compiled ahead of time returns copies (JAX 0.12)."""
  copied = copy.copy(jnp.dtype(dtype))
  array = types.SimpleNamespace(shape=(2,), dtype=copied)
  metadata = tensorstore_format.zarr_metadata(array, (2,))
  assert metadata['dtype'] == (name or dtype)
