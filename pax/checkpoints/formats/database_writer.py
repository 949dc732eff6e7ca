# SPDX-License-Identifier: Apache-2.0
"""Writes arrays as OCDBT databases of TensorStore, as Orbax configures them.

    state/ocdbt.process_0/{manifest.ocdbt,d/...}   the parts of process 0
    state/{manifest.ocdbt,d/...}                   refers to those of all

Orbax finds an array as zarr 2 by its key path with dots. Levanter finds the
same chunks as zarr 3 by the path with slashes.

TensorStore is called without Orbax, whose calls for metrics and specifications
leak memory in each save (docs/known_issues.md).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pax.checkpoints.formats import tensorstore_format
from pax.checkpoints.formats.host_arrays import HostArray
from pax.files import storage

Path = pathlib.Path

# The metadata of arrays are in the nodes. Nodes of other databases with this
# configuration are taken over as they are.
_CONFIG = {
  'manifest_kind': 'single',
  'max_inline_value_bytes': 1024,
  'max_decoded_node_bytes': 10**8,
}
_ZARR3 = 'zarr.json'
# No other process writes the database: no manifest of the configuration alone
# comes first.
_NEW_DATABASE = {'config': _CONFIG, 'assume_config': True}


def write(
  folder: Path, arrays: Mapping[str, HostArray], *, file_bytes: int
) -> None:
  """Writes the parts of this process into a new database.

  They are one transaction: the database has one version, and its data are
  written once.

  Args:
    folder: Directory of the database.
    arrays: Parts of arrays by their names in the database.
    file_bytes: Size of the files into which the data are divided.

  Raises:
    ValueError: TensorStore cannot write them.
  """
  import tensorstore as ts

  files = storage.kvstore(folder)
  database = {
    'driver': 'ocdbt',
    # The manifest refers to the other files, and is written after them.
    'base': {**files, 'file_io_locking': {'mode': 'non_atomic'}},
    'manifest': files,
    'target_data_file_size': file_bytes,
    'cache_pool': tensorstore_format.OCDBT_CACHE,
    **_NEW_DATABASE,
  }
  context = tensorstore_format.create_context()
  transaction = ts.Transaction(atomic=True)
  written = {name: array for name, array in arrays.items() if array.parts}
  stores = [
    tensorstore_format.open_array(
      {**database, 'path': f'{name}/'},
      context,
      tensorstore_format.chunked_metadata(array),
      transaction,
    )
    for name, array in written.items()
  ]
  writes = [
    # The arrays do not change: TensorStore need not copy them.
    store.result()[index].write(
      values, can_reference_source_data_indefinitely=True
    )
    for store, array in zip(stores, written.values(), strict=True)
    for index, values in array.parts
  ]
  for pending in writes:
    pending.result()
  transaction.commit_async().result()


def merge(
  folder: Path,
  parts: Mapping[str, storage.Path],
  zarr3: Mapping[str, Mapping[str, Any]],
) -> None:
  """Writes a database that refers to the values of others.

  Args:
    folder: Directory of the database.
    parts: Directories of the others by the name below `folder` that they will
      have.
    zarr3: The metadata of zarr 3 of arrays by their names.

  Raises:
    ValueError: TensorStore cannot read or write them.
  """
  import tensorstore as ts

  layers: list[dict[str, Any]] = [{'base': storage.kvstore(folder)}]
  for name, part in parts.items():
    prefix = f'{name}/'
    base = storage.kvstore(part)
    layers.append({'base': base, 'prefix': prefix, 'strip_prefix': len(prefix)})
  stack = {'driver': 'kvstack', 'layers': layers}
  paths_of_arrays = {name: name.replace('.', '/') for name in zarr3}
  context = tensorstore_format.create_context()

  def open_database(path: str, **settings: Any) -> ts.KvStore:
    base = {**stack, 'path': path}
    spec = {'driver': 'ocdbt', 'base': base, **settings}
    return ts.KvStore.open(spec, context=context).result()

  transaction = ts.Transaction(atomic=True)
  merged = open_database('', **_NEW_DATABASE).with_transaction(transaction)
  copies = []
  for folder_name in sorted(parts):
    source = open_database(f'{folder_name}/')
    copies.append(source.experimental_copy_range_to(merged))
    copies += [
      (source / f'{name}/').experimental_copy_range_to(merged / f'{path}/')
      for name, path in paths_of_arrays.items()
      if path != name
    ]
  for name, path in paths_of_arrays.items():
    merged.write(f'{path}/{_ZARR3}', json.dumps(zarr3[name])).result()
  for copy in copies:
    copy.result()
  transaction.commit_async().result()


def zarr3_metadata(array: HostArray) -> dict[str, Any]:
  """Returns the metadata of zarr 3 of an array that `write` has written."""
  dtype = np.dtype(array.dtype)
  zero: Any = np.zeros((), dtype).tolist()
  if dtype.kind == 'c':
    zero = [0.0, 0.0]
  codec: dict[str, Any] = {'name': 'bytes'}
  if dtype.itemsize > 1:
    codec['configuration'] = {'endian': 'little'}
  chunks = tensorstore_format.chunked_metadata(array)['chunks']
  return {
    'zarr_format': 3,
    'node_type': 'array',
    'shape': list(array.shape),
    'data_type': dtype.name,
    'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': chunks}},
    # The names of the chunks are those of zarr 2.
    'chunk_key_encoding': {'name': 'v2', 'configuration': {'separator': '.'}},
    'fill_value': zero,
    'codecs': [codec],
  }
