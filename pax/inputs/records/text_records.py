# SPDX-License-Identifier: Apache-2.0
"""Documents in files of text, JSON lines, Parquet, Arrow and records.

The files of a source are memory-mapped or read by offset: opening one reads at
most its index, or its line ends.
"""

from __future__ import annotations

import functools
import importlib
import json
import mmap
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pax.files import tf_records
from pax.inputs.records import record_sources, text_files, tfrecord_files

TextSource = record_sources.RecordSource[bytes]
_Error = record_sources.UnreadableRecordError

# Bytes that are searched for line ends at once.
_CHUNK_BYTES = 1 << 24
# For messages.
_FIELD_SETTING = 'TEXT_FIELD (`pax prepare`: --field) names it'


def open_text(path: str, field: str = 'text') -> TextSource:
  """Opens a file of documents.

  Args:
    path: A file with a suffix of SUFFIXES.
    field: Field of JSON, column of Parquet and Arrow, or feature of a
      tf.train.Example with the text; '' if records are the text itself.

  Raises:
    ValueError: The file is missing, damaged or of another kind, or a package is
      not installed.
  """
  suffix = pathlib.Path(path).suffix
  if suffix not in SUFFIXES:
    raise ValueError(
      f'{path} must be a file of {", ".join(SUFFIXES)}; rename or convert it'
    )
  if not os.path.isfile(path):
    raise ValueError(f'{path} must be a file of text, but does not exist')
  return _OPENERS[suffix](path, field)


def documents(paths: Iterable[str], field: str = 'text') -> Iterator[bytes]:
  """Yields the documents of files; those without a suffix of SUFFIXES are text.

  Args:
    paths: The files.
    field: As for `open_text`.

  Raises:
    ValueError: As `open_text`.
    UnreadableRecordError: A record has no text.
  """
  for path in paths:
    opener = _OPENERS.get(pathlib.Path(path).suffix, PlainText)
    if opener is PlainText:
      # Is read once.
      yield from text_files.documents([path])
    else:
      source = opener(path, field)
      yield from map(source.read, range(len(source)))


class PlainText(TextSource):
  """The documents of a text file: the file, or parts of a long one."""

  def __init__(self, path: str, field: str = ''):
    del field
    self._path = path
    self._starts = [0]
    for document in text_files.documents([path]):
      self._starts.append(self._starts[-1] + len(document))

  def __len__(self) -> int:
    return len(self._starts) - 1

  def read(self, index: int) -> bytes:
    start, end = self._starts[index : index + 2]
    with open(self._path, 'rb') as f:
      return os.pread(f.fileno(), end - start, start)

  def where(self, index: int) -> str:
    return (
      f'bytes {self._starts[index]}-{self._starts[index + 1]} of {self._path}'
    )


class JsonLines(TextSource):
  """A document per line, in a field of a JSON object; empty lines are none."""

  def __init__(self, path: str, field: str):
    self._path, self._field = path, field
    self._content = _map_bytes(path)
    ends = _line_ends(self._content)
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_line = _have_text(self._content, starts, ends)
    # Numbers of the lines, for messages.
    self._lines = np.flatnonzero(is_line)
    self._starts, self._ends = starts[is_line], ends[is_line]

  def __len__(self) -> int:
    return len(self._starts)

  def read(self, index: int) -> bytes:
    """Returns a document.

    Raises:
      UnreadableRecordError: The line is no JSON object with the text.
    """
    line = bytes(self._content[self._starts[index] : self._ends[index]])
    try:
      text = json.loads(line)[self._field]
      return text.encode()
    except (AttributeError, LookupError, TypeError, ValueError) as e:
      raise _Error(
        f'{self.where(index)} must be a JSON object with a text'
        f' {self._field!r}, got {line[:60]!r}; {_FIELD_SETTING}'
      ) from e

  def where(self, index: int) -> str:
    return f'line {self._lines[index] + 1} of {self._path}'


class Table(TextSource):
  """A document per row of a column; groups of rows are read at once."""

  def __init__(
    self,
    path: str,
    field: str,
    group_sizes: Sequence[int],
    read_group: Callable[[int], Any],
  ):
    """Remembers how to read.

    Args:
      path: The file, for messages.
      field: Name of the column.
      group_sizes: Number of rows of each group.
      read_group: Returns the column of a group, an Arrow array.
    """
    self._path, self._field = path, field
    self._ends = np.cumsum(group_sizes, dtype=np.int64)
    self._read_group = functools.lru_cache(maxsize=2)(read_group)

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def read(self, index: int) -> bytes:
    """Returns a document.

    Raises:
      UnreadableRecordError: The group is damaged, or the row has no text.
    """
    group = int(np.searchsorted(self._ends, index, 'right'))
    try:
      column = self._read_group(group)
      first = int(self._ends[group]) - len(column)
      value = column[index - first].as_py()
    except (IndexError, OSError, ValueError) as e:
      raise _Error(f'{self.where(index)} is damaged: {e}') from e
    if not isinstance(value, str | bytes):
      raise _Error(
        f'{self.where(index)} must have a text {self._field!r}, got {value!r}'
      )
    return value.encode() if isinstance(value, str) else value

  def where(self, index: int) -> str:
    return f'row {index} of {self._path}'


class Records(TextSource):
  """A document per record of TFRecord or ArrayRecord files.

  A record is a tf.train.Example, or the text itself if `field` is empty.
  """

  def __init__(self, path: str, field: str, records: TextSource):
    self._path, self._field, self._records = path, field, records

  def __len__(self) -> int:
    return len(self._records)

  def read(self, index: int) -> bytes:
    """Returns a document.

    Raises:
      UnreadableRecordError: The record is damaged or has no text.
    """
    record = self._records.read(index)
    if not self._field:
      return record
    try:
      values = tf_records.parse_example(record, [self._field])[self._field]
    except (KeyError, ValueError) as e:
      raise _Error(
        f'{self.where(index)} must be a tf.train.Example with a text'
        f' {self._field!r}, got {record[:40]!r}; {_FIELD_SETTING}, empty if'
        ' records are the text itself'
      ) from e
    if len(values) != 1 or not isinstance(values[0], bytes):
      raise _Error(
        f'{self.where(index)} must have one text {self._field!r}, got'
        f' {len(values)} values of another type'
      )
    return values[0]

  def where(self, index: int) -> str:
    return self._records.where(index)


class ArrayRecords(TextSource):
  """The records of an ArrayRecord file."""

  def __init__(self, path: str):
    module = _import('array_record.python.array_record_module', path)
    self._path = path
    try:
      self._reader = module.ArrayRecordReader(path)
    except RuntimeError as e:
      raise ValueError(f'{path} must be an ArrayRecord file: {e}') from e
    # A reader without the end of its file has no records.
    if not self._reader.ok():
      raise ValueError(
        f'{path} must be a complete ArrayRecord file, got'
        f' {os.path.getsize(path)} bytes without its end; write it again'
      )

  def __len__(self) -> int:
    return self._reader.num_records()

  def read(self, index: int) -> bytes:
    """Returns a document.

    Raises:
      UnreadableRecordError: The record is damaged.
    """
    try:
      return self._reader.read([index])[0]
    except RuntimeError as e:
      raise _Error(f'{self.where(index)} is damaged: {e}') from e

  def where(self, index: int) -> str:
    return f'record {index} of {self._path}'

  def __reduce__(self) -> tuple[type, tuple[str]]:
    return type(self), (self._path,)


def _open_parquet(path: str, field: str) -> Table:
  parquet = _import('pyarrow.parquet', path)
  try:
    file = parquet.ParquetFile(
      path, memory_map=True, page_checksum_verification=True
    )
  except (OSError, ValueError) as e:
    raise ValueError(f'{path} must be a Parquet file: {e}') from e
  _check_column(path, field, file.schema_arrow.names)
  sizes = [
    file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)
  ]
  return Table(
    path,
    field,
    sizes,
    lambda group: file.read_row_group(group, columns=[field]).column(0),
  )


def _open_arrow(path: str, field: str) -> Table:
  """Opens a file of `datasets.Dataset.save_to_disk`, or an Arrow file."""
  arrow = _import('pyarrow', path)
  try:
    batches = _arrow_batches(arrow.ipc, arrow.memory_map(path))
  except (OSError, ValueError) as e:
    raise ValueError(f'{path} must be a complete Arrow file: {e}') from e
  if batches:
    _check_column(path, field, batches[0].schema.names)
  sizes = [batch.num_rows for batch in batches]
  return Table(path, field, sizes, lambda i: batches[i].column(field))


def _arrow_batches(ipc: Any, content: Any) -> list[Any]:
  try:
    return list(ipc.open_stream(content))
  except ValueError:
    file = ipc.open_file(content)
    return [file.get_batch(i) for i in range(file.num_record_batches)]


def _check_column(path: str, field: str, names: Sequence[str]) -> None:
  if field not in names:
    raise ValueError(
      f'{path} must have a column {field!r}, got {list(names)};'
      f' {_FIELD_SETTING}'
    )


def _import(module: str, path: str) -> Any:
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as e:
    package = module.split('.')[0].replace('_', '-')
    raise ValueError(
      f'{path} needs the package {package}, which is not installed; pip install'
      " 'pax-jax[data]'"
    ) from e


def _map_bytes(path: str) -> memoryview:
  with open(path, 'rb') as f:
    if not os.fstat(f.fileno()).st_size:
      return memoryview(b'')
    return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


def _line_ends(content: memoryview) -> np.ndarray:
  """Returns the offset after each line, without its line break."""
  ends = []
  for start in range(0, len(content), _CHUNK_BYTES):
    chunk = np.frombuffer(content[start : start + _CHUNK_BYTES], np.uint8)
    ends.append(np.flatnonzero(chunk == ord('\n')) + start)
  if len(content) and content[-1] != ord('\n'):
    ends.append(np.array([len(content)]))
  return np.concatenate(ends) if ends else np.zeros(0, np.int64)


def _have_text(
  content: memoryview, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
  """Returns whether each line has more than white space."""
  have_text = ends > starts
  lines = np.flatnonzero(have_text)
  first_bytes = np.frombuffer(content, np.uint8)[starts[lines]]
  for i in lines[first_bytes <= ord(' ')]:
    have_text[i] = bool(bytes(content[starts[i] : ends[i]]).strip())
  return have_text


_OPENERS: dict[str, Callable[[str, str], TextSource]] = {
  '.txt': PlainText,
  '.md': PlainText,
  '.py': PlainText,
  '.jsonl': JsonLines,
  '.ndjson': JsonLines,
  '.parquet': _open_parquet,
  '.arrow': _open_arrow,
  '.tfrecord': lambda path, field: Records(
    path, field, tfrecord_files.RecordFiles([path])
  ),
  '.array_record': lambda path, field: Records(path, field, ArrayRecords(path)),
  '.arrayrecord': lambda path, field: Records(path, field, ArrayRecords(path)),
}
SUFFIXES = tuple(_OPENERS)
