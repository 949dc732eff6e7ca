# SPDX-License-Identifier: Apache-2.0
"""Tokenization of text files into an indexed array, in processes, resumable.

The records are divided into parts. Each finished part is a file, so that
another run continues with the others; the last step concatenates them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import process
from typing import Any

import numpy as np
from absl import logging

from pax.files import atomic_file
from pax.inputs.records import record_sources, text_records
from pax.inputs.tokens import cache, token_arrays, tokenizers
from praxis import pax_fiddle

# Size of the text of a part, about: a 64th of it within these limits, so that
# all cores have work to the end.
_MIN_PART_BYTES, _MAX_PART_BYTES = 1 << 20, 1 << 24
_MIN_PARTS = 64
# Bytes of text above which tokenization starts processes.
_MIN_BYTES_OF_PROCESSES = 1 << 24
# Seconds between two reports of the progress; warnings are on the console.
_REPORT_SECS = 10.0
# Messages of corrupt records that a part keeps.
_MAX_MESSAGES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizationJob:
  """Text files, and how to tokenize them."""

  paths: Sequence[str]
  tokenizer: pax_fiddle.Config[tokenizers.Tokenizer]
  # Field with the text; see text_records.open_text.
  field: str = 'text'
  # Number of corrupt records that are left out; one more is an error.
  max_corrupt_records: int = 0
  # Processes; 0 is one per CPU core, and none for little text.
  num_workers: int = 0

  def open_records(self) -> record_sources.Concatenation[bytes]:
    """Returns the documents of all files."""
    return record_sources.Concatenation(
      [text_records.open_text(path, self.field) for path in self.paths]
    )

  @property
  def num_bytes(self) -> int:
    """Size of all files."""
    return sum(os.path.getsize(path) for path in self.paths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The result of a tokenization."""

  num_documents: int
  num_tokens: int
  num_corrupt_records: int


def tokenize_files(job: TokenizationJob, output: str) -> Summary:
  """Writes `output`.bin, .idx and .json, or returns if they are complete.

  Each document is between bos and eos.

  Args:
    job: The files and the tokenizer.
    output: Path of the array without a suffix.

  Raises:
    ValueError: The files have no documents or too many corrupt ones, or the
      output is that of other files.
    RuntimeError: A worker process died.
  """
  folder = pathlib.Path(f'{output}.parts')
  tokenizer = _fitted_tokenizer(job)
  records = job.open_records()
  if not len(records):
    raise ValueError(
      f'{list(job.paths)} have no documents; add files with text'
    )
  identity = _identity(job, tokenizer, len(records))
  if (summary := _finished(output, identity)) is not None:
    return summary
  _begin(folder, identity)
  step = -(-len(records) * identity['part_bytes'] // max(1, job.num_bytes))
  step = max(1, step)
  ranges = [
    (first, min(first + step, len(records)))
    for first in range(0, len(records), step)
  ]
  _tokenize_parts(job, folder, ranges)
  summary = _concatenate(folder, len(ranges), output, tokenizer, identity)
  shutil.rmtree(folder)
  return summary


def tokenize_cached(job: TokenizationJob) -> str:
  """Tokenizes files into the cache; returns the path of the array.

  One process of a machine tokenizes, the others wait for it.
  """
  identity = [
    job.field,
    _identity_of_ids(job, _fitted_tokenizer(job)),
    job.paths,
    *([os.path.getsize(p), _mtime(p)] for p in job.paths),
  ]
  digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
  output = cache.folder() / f'tokens_{digest}'
  with cache.lock(output.with_suffix('.lock')):
    tokenize_files(job, str(output))
  return f'{output}.bin'


def _fitted_tokenizer(job: TokenizationJob) -> tokenizers.Tokenizer:
  tokenizer = job.tokenizer.Instantiate()
  if not tokenizer.is_fitted:
    raise ValueError(
      f'{type(tokenizer).__name__} must have a model to tokenize files; set'
      ' TOKENIZER to a *.model, a tokenizer.json, or bytes'
    )
  return tokenizer


def _identity_of_ids(
  job: TokenizationJob, tokenizer: tokenizers.Tokenizer
) -> dict[str, Any]:
  """Returns what decides the ids of a text."""
  vocabulary = tokenizer.vocabulary
  return {
    'vocabulary': vocabulary.digest if vocabulary else str(job.tokenizer),
    'bos_and_eos': [tokenizer.bos_id, tokenizer.eos_id],
  }


def _identity(
  job: TokenizationJob, tokenizer: tokenizers.Tokenizer, num_records: int
) -> dict[str, Any]:
  """Returns what decides the content of the output."""
  return {
    'files': [[str(p), os.path.getsize(p), _mtime(p)] for p in job.paths],
    'field': job.field,
    'num_records': num_records,
    'part_bytes': _part_bytes(job),
    **_identity_of_ids(job, tokenizer),
  }


def _part_bytes(job: TokenizationJob) -> int:
  size = job.num_bytes // _MIN_PARTS
  return min(max(size, _MIN_PART_BYTES), _MAX_PART_BYTES)


def _mtime(path: str) -> int:
  return os.stat(path).st_mtime_ns


def _finished(output: str, identity: dict[str, Any]) -> Summary | None:
  """Returns the summary of a complete output; None if there is none."""
  if not os.path.exists(f'{output}.idx'):
    return None
  record = _read_json(pathlib.Path(f'{output}.json'))
  # Earlier versions recorded no bos.
  bos_and_eos = {'bos_and_eos': identity['bos_and_eos']}
  source = {**bos_and_eos, **record.get('source', {})}
  source['part_bytes'] = identity['part_bytes']
  if source != identity:
    raise ValueError(
      f'{output}.idx was made of other files, with another tokenizer, or not by'
      ' pax prepare; delete it, or choose another output'
    )
  return Summary(**record['summary'])


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a file; {} if it is missing or damaged."""
  try:
    content = json.loads(path.read_text())
  except (FileNotFoundError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def _begin(folder: pathlib.Path, identity: dict[str, Any]) -> None:
  """Makes the folder of parts; those of another tokenization are deleted."""
  record = folder / 'source.json'
  if _read_json(record) == identity:
    logging.warning('Tokenization continues with the parts in %s', folder)
    return
  shutil.rmtree(folder, ignore_errors=True)
  atomic_file.make_folder(folder, parents=True)
  atomic_file.write_text(record, json.dumps(identity))


def _tokenize_parts(
  job: TokenizationJob, folder: pathlib.Path, ranges: list[tuple[int, int]]
) -> None:
  """Writes the missing parts, and reports the progress."""
  budget = _CorruptRecords(job.max_corrupt_records)
  missing = []
  for part, span in enumerate(ranges):
    if (path := _part_path(folder, part)).exists():
      budget.add(path)
    else:
      missing.append((part, *span))
  begin = reported = time.monotonic()
  for finished, part in enumerate(_run(job, folder, missing), start=1):
    budget.add(_part_path(folder, part))
    if (now := time.monotonic()) - reported >= _REPORT_SECS:
      reported, rest = now, len(missing) - finished
      logging.warning(
        'Tokenized %d of %d parts (%.0f %%), about %.0f s to go',
        len(ranges) - rest,
        len(ranges),
        100 * (1 - rest / len(ranges)),
        rest * (now - begin) / finished,
      )


def _run(
  job: TokenizationJob,
  folder: pathlib.Path,
  missing: Sequence[tuple[int, int, int]],
) -> Iterator[int]:
  """Yields the numbers of parts as they are finished."""
  workers = job.num_workers
  if not workers:
    is_large = job.num_bytes >= _MIN_BYTES_OF_PROCESSES
    workers = len(os.sched_getaffinity(0)) if is_large else 1
  if workers == 1 or len(missing) < 2:
    worker = _Worker(job, folder)
    yield from itertools.starmap(worker.tokenize, missing)
    return
  # Forking a process with threads, such as those of JAX, may deadlock.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(
    min(workers, len(missing)), context, _start_worker, (job, folder)
  ) as pool:
    parts = [pool.submit(_tokenize, *part) for part in missing]
    try:
      for part in futures.as_completed(parts):
        yield part.result()
    except process.BrokenProcessPool as e:
      raise RuntimeError(
        f'a worker process died while it tokenized {list(job.paths)[:3]}, for'
        ' lack of memory or by a signal; finished parts are kept: run it again,'
        ' with fewer workers if memory was short'
      ) from e
    finally:
      pool.shutdown(cancel_futures=True)


class _Worker:
  """Tokenizes ranges of records into files."""

  def __init__(self, job: TokenizationJob, folder: pathlib.Path):
    self._folder = folder
    self._records = job.open_records()
    self._tokenizer = job.tokenizer.Instantiate()
    self._dtype = _dtype_of(self._tokenizer)

  def tokenize(self, part: int, first: int, end: int) -> int:
    """Writes the part of records `first` to `end`; returns its number."""
    bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
    documents: list[np.ndarray] = []
    messages: list[str] = []
    num_corrupt = 0
    for index in range(first, end):
      try:
        ids = self._tokenizer.encode(self._records.read(index))
      except record_sources.UnreadableRecordError as e:
        num_corrupt += 1
        messages = [*messages, str(e)][:_MAX_MESSAGES]
        continue
      documents.append(np.concatenate([[bos], ids, [eos]]).astype(self._dtype))
    with atomic_file.open_atomic(_part_path(self._folder, part)) as f:
      np.savez(
        f,
        tokens=np.concatenate([np.zeros(0, self._dtype), *documents]),
        lengths=np.array([len(d) for d in documents], np.int64),
        num_corrupt=num_corrupt,
        messages=np.array(messages, np.str_),
      )
    return part


# Set in a worker process, by `_start_worker`.
_worker: _Worker


def _start_worker(job: TokenizationJob, folder: pathlib.Path) -> None:
  global _worker
  threading.Thread(target=_end_with_the_parent, daemon=True).start()
  _worker = _Worker(job, folder)


def _end_with_the_parent() -> None:
  # A worker of a killed process waits for its next part for ever.
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _tokenize(part: int, first: int, end: int) -> int:
  return _worker.tokenize(part, first, end)


class _CorruptRecords:
  """Counts the corrupt records of parts up to a limit."""

  def __init__(self, limit: int):
    self._limit, self._count = limit, 0

  def add(self, part: pathlib.Path) -> None:
    """Counts the corrupt records of a part.

    Raises:
      UnreadableRecordError: There are more than the limit.
    """
    with np.load(part) as content:
      num_corrupt = int(content['num_corrupt'])
      messages = content['messages'].tolist()
    if not num_corrupt:
      return
    self._count += num_corrupt
    if self._count > self._limit:
      # Another run, with a higher limit or a repaired file, reads it again.
      part.unlink()
      raise record_sources.UnreadableRecordError(
        f'{messages[0]}; corrupt records: {self._count}, allowed:'
        f' {self._limit}. Repair the file, or set MAX_CORRUPT_RECORDS'
        ' (`pax prepare`: --max_corrupt_records)'
      )
    for message in messages:
      logging.warning('A corrupt record is left out: %s', message)


def _concatenate(
  folder: pathlib.Path,
  num_parts: int,
  output: str,
  tokenizer: tokenizers.Tokenizer,
  identity: dict[str, Any],
) -> Summary:
  """Writes the array of all parts; the index comes last."""
  lengths, num_corrupt = [], 0
  with atomic_file.open_atomic(f'{output}.bin') as f:
    for part in range(num_parts):
      with np.load(_part_path(folder, part)) as content:
        f.write(content['tokens'].tobytes())
        lengths.append(content['lengths'])
        num_corrupt += int(content['num_corrupt'])
  all_lengths = np.concatenate(lengths)
  summary = Summary(
    num_documents=len(all_lengths),
    num_tokens=int(all_lengths.sum()),
    num_corrupt_records=num_corrupt,
  )
  record = {
    'vocabulary': tokenizer.vocabulary,
    'vocab_size': tokenizer.vocab_size,
    'eos_id': tokenizer.eos_id,
    'summary': dataclasses.asdict(summary),
    'source': identity,
  }
  atomic_file.write_text(f'{output}.json', json.dumps(record, indent=1))
  token_arrays.write_index(f'{output}.idx', all_lengths, _dtype_of(tokenizer))
  return summary


def _dtype_of(tokenizer: tokenizers.Tokenizer) -> np.dtype:
  return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def _part_path(folder: pathlib.Path, part: int) -> pathlib.Path:
  return folder / f'{part:06}.npz'
