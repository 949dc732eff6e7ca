# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi//array_record,@pypi//grain
"""Tokens per second of packed batches: Pax, Grain, Hugging Face datasets.

    python -m benchmarks.inputs --rounds=5

All read the same documents from an array of tokens on disk, shuffle them and
return batches of [batch, seq_len] with segment ids and positions: `pax` packs
with best-fit, `grain` with its first-fit iterator, `datasets` concatenates and
cuts as in its examples, with the fields of Pax. `pax_contiguous` cuts the
array. A round is `--batches` batches of each. `tokens_per_cpu_sec` counts
tokens without padding per second of CPU time of the process, `tokens_per_sec`
by wall time. Further lines are the time to the first batch after a seek to step
10^6, `csrc/host` relative to the same algorithms in Python, with `--prepare_mb`
tokens per second of `pax prepare`, and with `--job_log_dir` the input wait of a
training job.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import functools
import json
import os
import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import measure
from pax.inputs import lm_input
from pax.inputs.records import text_files
from pax.inputs.rows import native, packing, packing_reference
from pax.inputs.tokens import token_arrays, tokenization, tokenizers
from pax.summaries import goodput
from praxis import pax_fiddle

_VOCAB_SIZE = 50_000
_SEED = 7
_FAR_STEP = 10**6
# Documents that csrc/host packs, and indices that it permutes.
_NUM_PACKED, _NUM_PERMUTED = 20_000, 20_000


def main() -> None:
  args = _parser().parse_args()
  with tempfile.TemporaryDirectory() as folder:
    path = _write_documents(pathlib.Path(folder), args.documents)
    sources = {
      'pax': lambda: _pax(path, args, packing.BEST_FIT),
      'pax_contiguous': lambda: _pax(path, args, lm_input.CONTIGUOUS),
      'grain': lambda: _grain(path, args),
      'datasets': lambda: _datasets(path, args, folder),
    }
    _measure_speed(args, sources)
    _measure_seek(args, path)
    _measure_host_code(args)
    if args.prepare_mb:
      _measure_prepare(args, pathlib.Path(folder))
  if args.job_log_dir:
    _report_input_wait(args.job_log_dir)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--documents', type=int, default=50_000)
  parser.add_argument('--batch', type=int, default=32)
  parser.add_argument('--seq_len', type=int, default=2048)
  parser.add_argument('--batches', type=int, default=20)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--prepare_mb', type=int, default=0)
  parser.add_argument('--job_log_dir')
  return parser


def _write_documents(folder: pathlib.Path, count: int) -> str:
  """Writes documents with a log-normal distribution of lengths."""
  rng = np.random.default_rng(0)
  lengths = np.minimum(rng.lognormal(6, 1, count), 20_000).astype(np.int64) + 2
  tokens = rng.integers(1, _VOCAB_SIZE, lengths.sum(), dtype=np.uint16)
  tokens.tofile(folder / 'tokens.bin')
  token_arrays.write_index(folder / 'tokens.idx', lengths, np.uint16)
  return str(folder / 'tokens.bin')


def _measure_speed(
  args: argparse.Namespace, sources: dict[str, Callable[[], Iterator[int]]]
) -> None:
  iterators = {}
  for name, make in sources.items():
    try:
      iterators[name] = make()
    except ModuleNotFoundError as e:
      print(f'{name} is not measured: {e}')
  tokens: dict[str, list[int]] = {name: [] for name in iterators}

  def run(name: str) -> Callable[[], None]:
    def read() -> None:
      counts = (next(iterators[name]) for _ in range(args.batches))
      tokens[name].append(sum(counts))

    return read

  runs = {name: run(name) for name in iterators}
  measure.alternate(runs, 1)
  for counts in tokens.values():
    counts.clear()
  times = measure.alternate(runs, args.rounds)
  for name, counts in tokens.items():
    rates = {
      'tokens_per_sec': times[name].wall,
      'tokens_per_cpu_sec': times[name].cpu,
    }
    measure.report(
      'inputs',
      {
        'implementation': name,
        'batch': args.batch,
        'seq_len': args.seq_len,
        **{
          rate: round(
            statistics.median(
              n / t for n, t in zip(counts, seconds, strict=True)
            )
          )
          for rate, seconds in rates.items()
        },
      },
    )


def _make_input(
  path: str, args: argparse.Namespace, layout: str
) -> lm_input.LanguageModelInput:
  return lm_input.LanguageModelInput.config(
    data=path,
    layout=layout,
    batch_size=args.batch,
    seq_len=args.seq_len,
    vocab_size=_VOCAB_SIZE,
    input_random_seed=_SEED,
    is_training=True,
  ).Instantiate()


def _pax(path: str, args: argparse.Namespace, layout: str) -> Iterator[int]:
  source = _make_input(path, args, layout)

  def batches() -> Iterator[int]:
    while True:
      yield int(source.get_next().weights.sum())

  return batches()


class _Documents:
  """The documents, for Grain and datasets; ids and labels as in Pax."""

  def __init__(self, path: str):
    self._corpus = token_arrays.open_array(path).corpus

  def __len__(self) -> int:
    return len(self._corpus.starts) - 1

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    start, end = self._corpus.starts[index : index + 2]
    tokens = self._corpus.tokens[start:end].astype(np.int32)
    return {'ids': tokens[:-1], 'labels': tokens[1:]}


def _grain(path: str, args: argparse.Namespace) -> Iterator[int]:
  import grain

  length = args.seq_len

  def truncate(document: dict[str, Any]) -> dict[str, Any]:
    return {name: x[:length] for name, x in document.items()}

  documents = grain.MapDataset.source(_Documents(path))
  documents = documents.shuffle(seed=_SEED).repeat().map(truncate)
  packed = grain.experimental.FirstFitPackIterDataset(
    documents.to_iter_dataset(),
    length_struct={'ids': length, 'labels': length},
    num_packing_bins=args.batch,
  )
  batches = iter(packed.batch(args.batch))

  def counts() -> Iterator[int]:
    for batch in batches:
      yield int((batch['ids_segment_ids'] > 0).sum())

  return counts()


def _datasets(
  path: str, args: argparse.Namespace, folder: str
) -> Iterator[int]:
  import datasets

  corpus = token_arrays.open_array(path).corpus
  length = args.seq_len + 1
  rows = len(corpus.tokens) // length
  datasets.disable_progress_bars()
  table = datasets.Dataset.from_dict(
    {
      'ids': corpus.tokens[: rows * length]
      .astype(np.int32)
      .reshape(rows, length)
    }
  )
  table.save_to_disk(f'{folder}/datasets')
  table = datasets.load_from_disk(f'{folder}/datasets').with_format('numpy')

  def counts() -> Iterator[int]:
    epoch = 0
    while True:
      shuffled = table.shuffle(seed=_SEED + epoch, keep_in_memory=True)
      for batch in shuffled.iter(args.batch, drop_last_batch=True):
        yield int(_fields_of(batch['ids'])['weights'].sum())
      epoch += 1

  return counts()


def _fields_of(tokens: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the fields of a batch of language models, as Pax has them."""
  ids = np.ascontiguousarray(tokens[:, :-1])
  positions = np.arange(ids.shape[1], dtype=np.int32)
  return {
    'ids': ids,
    'labels': np.ascontiguousarray(tokens[:, 1:]),
    'paddings': np.zeros(ids.shape, np.float32),
    'weights': np.ones(ids.shape, np.float32),
    'segment_ids': np.ones(ids.shape, np.int32),
    'segment_pos': np.tile(positions, (len(ids), 1)),
  }


def _measure_seek(args: argparse.Namespace, path: str) -> None:
  begin = time.perf_counter()
  source = _make_input(path, args, packing.BEST_FIT)
  source.get_next()
  opened = time.perf_counter()
  source.seek(_FAR_STEP)
  source.get_next()
  measure.report(
    'inputs',
    {
      'implementation': 'pax',
      'documents': args.documents,
      'open_secs': round(opened - begin, 4),
      'seek_to_step': _FAR_STEP,
      'seek_secs': round(time.perf_counter() - opened, 4),
    },
  )


def _measure_host_code(args: argparse.Namespace) -> None:
  """Measures csrc/host relative to Python, which has the same result."""
  rng = np.random.default_rng(0)
  lengths = np.minimum(rng.lognormal(6, 1, _NUM_PACKED), 20_000)
  lengths = lengths.astype(np.int64)
  indices = rng.integers(0, _FAR_STEP, _NUM_PERMUTED)
  extension = native.load()
  if extension is None:
    print('csrc/host is not measured: it is not built')
    return
  pack = (lengths, args.seq_len)
  runs = {
    'pack best_fit': {
      'cpp': lambda: extension.pack(*pack, 'best_fit', packing.BLOCK_SIZE),
      'numpy': lambda: packing_reference.pack(
        *pack, 'best_fit', packing.BLOCK_SIZE
      ),
      'python': lambda: _pack_in_python(lengths.tolist(), args.seq_len),
    },
    'permute': {
      'cpp': lambda: extension.permute(indices, _FAR_STEP, _SEED),
      'python': lambda: _permute_in_python(indices, _FAR_STEP, _SEED),
    },
  }
  for name, implementations in runs.items():
    times = measure.alternate(implementations, args.rounds)
    measure.report(
      'inputs',
      {
        'host_code': name,
        'seq_len': args.seq_len,
        **{key: measure.summary(x.cpu) for key, x in times.items()},
        'speedup': {
          key: measure.ratio(x.cpu, times['cpp'].cpu)
          for key, x in times.items()
          if key != 'cpp'
        },
      },
    )


def _pack_in_python(
  lengths: list[int], seq_len: int
) -> list[list[tuple[int, int, int, int]]]:
  """Best-fit of documents without numpy.

  Returns:
    The pieces of each row: document, offset, length, column.
  """
  rows: list[list[tuple[int, int, int, int]]] = []
  partial: list[tuple[int, int, int]] = []
  for document, length in enumerate(lengths):
    for offset in range(0, length, seq_len):
      size = min(seq_len, length - offset)
      if size == seq_len:
        rows.append([(document, offset, size, 0)])
      else:
        partial.append((document, offset, size))
  partial.sort(key=lambda piece: -piece[2])
  gaps: list[tuple[int, int]] = []
  for document, offset, size in partial:
    tightest = bisect.bisect_left(gaps, (size, -1))
    if tightest < len(gaps):
      free, row = gaps.pop(tightest)
    else:
      free, row = seq_len, len(rows)
      rows.append([])
    rows[row].append((document, offset, size, seq_len - free))
    if free > size:
      bisect.insort(gaps, (free - size, row))
  return rows


def _permute_in_python(indices: np.ndarray, size: int, seed: int) -> list[int]:
  """The permutation of csrc/host/index_permutation.h, in Python."""
  mask64 = 2**64 - 1

  def mix(value: int, key: int) -> int:
    z = (value * 0x9E3779B97F4A7C15 + key) & mask64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask64
    return z ^ (z >> 31)

  half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
  mask = (1 << half_bits) - 1
  keys = [mix(i, mix(seed, 0)) for i in range(6)]

  def permuted(value: int) -> int:
    while True:
      left, right = value >> half_bits, value & mask
      for key in keys:
        left, right = right, left ^ (mix(right, key) & mask)
      value = left << half_bits | right
      if value < size:
        return value

  return [permuted(index) for index in indices.tolist()]


def _measure_prepare(args: argparse.Namespace, folder: pathlib.Path) -> None:
  """Measures `pax prepare` on Python source, with one and with all cores."""
  documents = list(text_files.documents(text_files.stdlib_files()))
  text = b''.join(documents).decode('utf-8', 'replace')
  lines = [json.dumps({'text': x}) for x in text.split('\n\n')]
  size = sum(map(len, lines))
  path = folder / 'text.jsonl'
  path.write_text('\n'.join(lines * max(1, args.prepare_mb * 10**6 // size)))
  trained = tokenizers.SentencePieceTokenizer.config(num_pieces=2048)
  trained = trained.Instantiate()
  trained.fit(documents[:200])
  tokenizer = pax_fiddle.Config(
    tokenizers.SentencePieceTokenizer, model_file=trained.vocabulary.source
  )
  tokens: dict[int, int] = {}
  worker_cpu: dict[int, list[float]] = collections.defaultdict(list)

  def prepare(workers: int) -> None:
    before = _cpu_of_ended_processes()
    job = tokenization.TokenizationJob(
      paths=[str(path)], tokenizer=tokenizer, num_workers=workers
    )
    for suffix in ('bin', 'idx', 'json'):
      (folder / f'out.{suffix}').unlink(missing_ok=True)
    summary = tokenization.tokenize_files(job, str(folder / 'out'))
    tokens[workers] = summary.num_tokens
    worker_cpu[workers].append(_cpu_of_ended_processes() - before)

  counts = sorted({1, len(os.sched_getaffinity(0))})
  times = measure.alternate(
    {str(n): functools.partial(prepare, n) for n in counts}, 3
  )
  for count in counts:
    seconds = statistics.median(times[str(count)].wall)
    measure.report(
      'inputs',
      {
        'prepare_bytes': path.stat().st_size,
        'workers': count,
        'tokens_per_sec': round(tokens[count] / seconds),
        'wall': measure.summary(times[str(count)].wall),
        'cpu': measure.summary(times[str(count)].cpu),
        'cpu_of_workers': measure.summary(worker_cpu[count]),
      },
    )


def _cpu_of_ended_processes() -> float:
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime


def _report_input_wait(job_log_dir: str) -> None:
  path = pathlib.Path(job_log_dir, goodput.GOODPUT_FILE)
  spent = goodput.summarize(goodput.read(str(path)))
  if spent is None:
    raise SystemExit(f'{path} has no records')
  seconds = spent.seconds
  steps = seconds[goodput.STEP] + seconds[goodput.INPUT_WAIT]
  measure.report(
    'inputs',
    {
      'job': pathlib.Path(job_log_dir).name,
      'input_wait_secs': round(seconds[goodput.INPUT_WAIT], 3),
      'input_wait_share': round(seconds[goodput.INPUT_WAIT] / steps, 5),
    },
  )


if __name__ == '__main__':
  main()
