# SPDX-License-Identifier: Apache-2.0
"""Writes arrays as OCDBT databases of TensorStore, as Orbax configures them.

    state/ocdbt.process_0/{manifest.ocdbt,d/...}   the parts of process 0
    state/{manifest.ocdbt,d/...}                   refers to those of all

TensorStore is called without Orbax, whose calls for metrics and specifications
leak memory in each save (docs/known_issues.md).
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from pax import storage
from pax.checkpoints import tensorstore_format
from pax.checkpoints.host_arrays import HostArray

Path = pathlib.Path

# The metadata of arrays are in the nodes. Nodes of other databases with this
# configuration are taken over as they are.
_CONFIG = {
  'manifest_kind': 'single',
  'max_inline_value_bytes': 1024,
  'max_decoded_node_bytes': 10**8,
}
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
  for write in writes:
    write.result()
  transaction.commit_async().result()


def merge(folder: Path, parts: Mapping[str, storage.Path]) -> None:
  """Writes a database that refers to the values of others.

  Args:
    folder: Directory of the database.
    parts: Directories of the others by the name below `folder` that they will
      have.

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
  context = tensorstore_format.create_context()

  def open_database(path: str, **settings: Any) -> ts.KvStore:
    base = {**stack, 'path': path}
    spec = {'driver': 'ocdbt', 'base': base, **settings}
    return ts.KvStore.open(spec, context=context).result()

  merged = open_database('', **_NEW_DATABASE)
  transaction = ts.Transaction(atomic=True)
  for name in sorted(parts):
    source = open_database(f'{name}/')
    source.experimental_copy_range_to(
      merged.with_transaction(transaction)
    ).result()
  transaction.commit_async().result()
