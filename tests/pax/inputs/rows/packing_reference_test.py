# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""csrc/host equals its reference in Python, and rejects hostile arguments."""

from __future__ import annotations

import ast
import pathlib
import threading

import numpy as np
import pytest

from pax.inputs.rows import index_permutation, native, packing
from pax.inputs.rows import packing_reference as reference
from pax.inputs.tokens import token_corpus

host = native.load()
needs_host = pytest.mark.skipif(host is None, reason='_host is not built')


def random_lengths(rng: np.random.Generator, seq_len: int) -> np.ndarray:
  """Lengths of one of several kinds: short, long, equal, with empty ones."""
  count = int(rng.integers(0, 200))
  high = int(rng.choice([2, seq_len, seq_len + 1, 5 * seq_len]))
  return rng.integers(rng.choice([-2, 0, 1]), high + 1, count)


def check_plan(arrays, lengths, seq_len, fit, block_size) -> None:
  """Each label is in one place; segments fill rows from the left."""
  documents, offsets, sizes, columns, starts = arrays
  assert sizes.sum() == np.maximum(lengths, 0).sum()
  assert starts[0] == 0 and starts[-1] == len(documents)
  assert (np.diff(starts) > 0).all()
  for first, end in zip(starts, starts[1:], strict=False):
    ends = np.cumsum(sizes[first:end])
    np.testing.assert_array_equal(columns[first:end], ends - sizes[first:end])
    assert ends[-1] <= seq_len
    assert len(set(documents[first:end] // block_size)) == 1
  order = np.lexsort((offsets, documents))
  for document in np.unique(documents):
    pieces = order[documents[order] == document]
    covered = np.cumsum(sizes[pieces])
    np.testing.assert_array_equal(offsets[pieces], covered - sizes[pieces])
    assert covered[-1] == lengths[document]
  if fit == 'first_fit' and len(lengths) <= block_size:
    # No piece fits into an earlier row.
    used = np.zeros(len(starts) - 1, int)
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for piece in order:
      assert (used[: rows[piece]] + sizes[piece] > seq_len).all()
      used[rows[piece]] += sizes[piece]


@pytest.mark.parametrize('fit', packing.ALGORITHMS)
@pytest.mark.parametrize('seed', range(40))
def test_plans(fit, seed):
  rng = np.random.default_rng(seed)
  seq_len = int(rng.choice([1, 2, 7, 64, 65, 4096, 5000]))
  lengths = random_lengths(rng, seq_len)
  block_size = int(rng.choice([1, 3, 50, 1000]))
  arguments = (lengths, seq_len, fit, block_size)
  expected = reference.pack(*arguments)
  check_plan(expected, *arguments)
  if host is None:
    return
  for array, other in zip(host.pack(*arguments), expected, strict=True):
    np.testing.assert_array_equal(array, other)
    assert array.dtype == other.dtype


@needs_host
@pytest.mark.parametrize('dtype', packing._NATIVE_DTYPES)
def test_rows(dtype):
  rng = np.random.default_rng(0)
  documents = [rng.integers(0, 200, n) for n in rng.integers(0, 90, 50)]
  corpus = token_corpus.corpus_of(documents, bos_id=200, eos_id=201)
  corpus = token_corpus.Corpus(
    tokens=corpus.tokens.astype(dtype), starts=corpus.starts
  )
  plan = packing.plan(corpus.lengths, 32)
  # Some rows, in another order, between others.
  rows = rng.permutation(plan.num_rows)[:-3]
  places = rng.permutation(plan.num_rows)[:-3]
  batches = [packing.empty_batch(plan.num_rows, 32) for _ in range(2)]
  for write, batch in zip(
    (host.write_rows, reference.write_rows), batches, strict=True
  ):
    for array in batch.values():
      array[:] = -1
    arrays = tuple(batch[name] for name in packing._FIELDS)
    write(corpus.tokens, corpus.starts, plan[1:], rows, places, arrays)
  for name in packing._FIELDS:
    np.testing.assert_array_equal(batches[0][name], batches[1][name])
    is_written = (batches[0][name] != -1).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(is_written), np.sort(places))


@needs_host
@pytest.mark.parametrize('size', [1, 2, 3, 17, 4096, 4097, 2**40 + 1, 2**62])
@pytest.mark.parametrize('seed', [0, 1, -5, 2**64 - 1, 2**70])
def test_permutations(size, seed):
  indices = np.unique(np.linspace(0, size - 1, 200).astype(np.int64))
  indices = indices[indices < size].reshape(1, -1)
  np.testing.assert_array_equal(
    index_permutation.permuted(indices, size, seed),
    index_permutation._permuted(indices, size, seed),
  )


@needs_host
@pytest.mark.parametrize(
  ('lengths', 'seq_len', 'message'),
  [
    ([1], 0, 'seq_len must be within'),
    ([1], -(2**63), 'seq_len must be within'),
    ([1], 2**62, 'seq_len must be within'),
    ([2**63 - 1], 1, 'document 0 has 9223372036854775807'),
    ([1, 2**63 - 1, 2**63 - 1], 2, 'document 1'),
    ([2**36, 1], 1, 'document 1 has 1'),
  ],
)
@pytest.mark.parametrize('fit', packing.ALGORITHMS)
def test_hostile_lengths(lengths, seq_len, message, fit):
  with pytest.raises(ValueError, match=message):
    host.pack(np.array(lengths), seq_len, fit, 10)


@needs_host
def test_other_hostile_arguments():
  with pytest.raises(ValueError, match='block_size must be at least 1'):
    host.pack(np.array([1]), 1, 'best_fit', 0)
  with pytest.raises(ValueError, match='got worst_fit'):
    host.pack(np.array([1]), 1, 'worst_fit', 1)
  least = np.full(3, -(2**63))
  assert host.pack(least, 4, 'best_fit', 2**63 - 1)[4].tolist() == [0]
  with pytest.raises(ValueError, match='indices must be within 0 and 4'):
    host.permute(np.array([5]), 5, 0)


PIECE = {
  'tokens': np.arange(10, dtype=np.uint16),
  'starts': np.array([0, 10]),
  'documents': np.array([0]),
  'offsets': np.array([0]),
  'lengths': np.array([9], np.int32),
  'columns': np.array([0], np.int32),
  'row_starts': np.array([0, 1]),
  'rows': np.array([0]),
  'places': np.array([1]),
}


@needs_host
@pytest.mark.parametrize(
  ('changes', 'error'),
  [
    ({}, None),
    ({'documents': np.array([1])}, IndexError),
    ({'documents': np.array([-1])}, IndexError),
    ({'offsets': np.array([1])}, IndexError),
    ({'offsets': np.array([-1])}, IndexError),
    ({'offsets': np.array([2**63 - 1])}, IndexError),
    ({'lengths': np.array([10], np.int32)}, IndexError),
    ({'lengths': np.array([-1], np.int32)}, IndexError),
    ({'columns': np.array([8], np.int32)}, IndexError),
    ({'columns': np.array([-1], np.int32)}, IndexError),
    ({'starts': np.array([2**63 - 1, 0])}, IndexError),
    ({'starts': np.array([-4, 0])}, IndexError),
    ({'row_starts': np.array([0, 2])}, IndexError),
    ({'row_starts': np.array([-1, 1])}, IndexError),
    ({'row_starts': np.array([1, 0])}, IndexError),
    ({'row_starts': np.array([], np.int64)}, IndexError),
    ({'rows': np.array([1])}, IndexError),
    ({'rows': np.array([-1])}, IndexError),
    ({'places': np.array([2])}, IndexError),
    ({'places': np.array([-(2**63)])}, IndexError),
    ({'places': np.array([0, 1])}, ValueError),
    ({'columns': np.array([0, 1], np.int32)}, ValueError),
    ({'tokens': np.arange(10.0)}, ValueError),
    ({'tokens': np.arange(20, dtype=np.uint16)[::2]}, ValueError),
    ({'labels': np.zeros(31, np.int32)}, ValueError),
    ({'ids': np.zeros(32, np.int32)}, ValueError),
    ({'weights': np.zeros((2, 16))}, TypeError),
  ],
)
def test_pieces_outside_of_their_arrays(changes, error):
  batch = packing.empty_batch(2, 16)
  values = PIECE | dict(batch) | changes
  plan = ('documents', 'offsets', 'lengths', 'columns', 'row_starts')
  arguments = [
    values['tokens'],
    values['starts'],
    tuple(values[name] for name in plan),
    values['rows'],
    values['places'],
    tuple(values[name] for name in packing._FIELDS),
  ]
  if error is None:
    host.write_rows(*arguments)
    assert batch.labels[1].tolist() == [*range(1, 10), *[0] * 7]
  else:
    with pytest.raises(error):
      host.write_rows(*arguments)


@needs_host
def test_pieces_that_overlap():
  pair = np.array([0, 0])
  columns, lengths = np.array([0, 3], np.int32), np.array([4, 4], np.int32)
  plan = (pair, pair, lengths, columns, np.array([0, 2]))
  batch = packing.empty_batch(1, 16)
  arrays = tuple(batch[name] for name in packing._FIELDS)
  indices = np.array([0])
  with pytest.raises(IndexError, match='a piece of document 0'):
    host.write_rows(
      np.arange(9), PIECE['starts'], plan, indices, indices, arrays
    )


@needs_host
def test_packing_releases_the_gil():
  lengths = np.random.default_rng(0).integers(1, 500, 1 << 18)
  threads = [
    threading.Thread(target=host.pack, args=(lengths, 64, 'best_fit', 1 << 16))
    for _ in range(3)
  ]
  for thread in threads:
    thread.start()
  turns = 0
  while any(thread.is_alive() for thread in threads):
    turns += 1
  for thread in threads:
    thread.join()
  # With the GIL held, this thread would run only between the calls.
  assert turns > 3


@needs_host
def test_the_stub_names_what_the_extension_has():
  stub = pathlib.Path(native.__file__).parents[1] / '_host.pyi'
  functions = [
    node.name
    for node in ast.parse(stub.read_text()).body
    if isinstance(node, ast.FunctionDef)
  ]
  assert sorted(functions) == [n for n in dir(host) if not n.startswith('_')]
