# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Synthetic batches, and lines of a text file."""

from __future__ import annotations

import numpy as np
import pytest

from pax.tasks.lm import input_generator


def test_synthetic_data_is_all_ones():
  source = input_generator.SyntheticLmData.config(
    batch_size=2, seq_len=3, is_training=True
  ).Instantiate()
  for _ in range(2):
    batch = source.get_next()
    for name in ('ids', 'labels', 'segment_ids'):
      assert batch[name].dtype == np.int32
      np.testing.assert_array_equal(batch[name], np.ones((2, 3)))
    np.testing.assert_array_equal(batch.segment_pos, [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(batch.paddings, np.zeros((2, 3)))
    np.testing.assert_array_equal(batch.weights, np.ones((2, 3)))
    np.testing.assert_array_equal(batch.eval_sample_weights, np.ones(2))
  source.set_state(source.get_state())


def test_synthetic_data_needs_a_length():
  with pytest.raises(ValueError, match='seq_len'):
    input_generator.SyntheticLmData.config(batch_size=2).Instantiate()


@pytest.fixture
def lines(tmp_path):
  path = tmp_path / 'lines'
  path.write_text('one\ntwo\nthree is long\n')
  return str(path)


def text(lines, **kwargs):
  settings = {
    'input_file': lines,
    'batch_size': 2,
    'max_sequence_length': 6,
    'bytes_repr': False,
    **kwargs,
  }
  return input_generator.TextInput.config(**settings).Instantiate()


def test_lines_fill_rows_and_the_last_batch_is_padded(lines):
  source = text(lines)
  assert source.computed_num_samples == 3
  first, second = source.get_next(), source.get_next()
  lengths = (1 - second.paddings).sum(axis=1).astype(int)
  assert list(lengths) == [6, 0]
  assert source.ids_to_strings(second.ids, lengths) == ['three', '']
  assert source.ids_to_strings(first.labels, [3, 3]) == ['one', 'two']
  np.testing.assert_array_equal(first.eval_sample_weights, [1, 1])
  np.testing.assert_array_equal(second.eval_sample_weights, [1, 0])
  with pytest.raises(StopIteration):
    source.get_next()
  source.reset()
  np.testing.assert_array_equal(source.get_next().ids, first.ids)


def test_some_lines(lines):
  source = text(lines, num_samples=1)
  batch = source.get_next()
  assert source.ids_to_strings(batch.labels[:1], [3]) == ['one']
  assert source.peek_padded() is None


def test_the_number_of_lines_is_not_negative(lines):
  with pytest.raises(ValueError, match='num_samples .* at least 0.* got -1'):
    text(lines, num_samples=-1)


def test_lines_that_spell_bytes(tmp_path):
  path = tmp_path / 'lines'
  path.write_text(f'{b"a"!r}\n{"ä, b".encode()!r}\n{chr(10).encode()!r}\n')
  source = text(str(path), bytes_repr=True)
  batches = [source.get_next(), source.get_next()]
  labels = np.concatenate([b.labels for b in batches])[:3]
  assert source.ids_to_strings(labels, [1, 5, 1]) == ['a', 'ä, b', '\n']


@pytest.mark.parametrize(
  'line', ['one', "'one'", "b'one", '1', '-' * 100_000 + '1']
)
def test_lines_that_do_not_spell_bytes(tmp_path, line):
  path = tmp_path / 'lines'
  path.write_text(line)
  with pytest.raises(ValueError, match='set bytes_repr=False'):
    text(str(path), bytes_repr=True).get_next()


def test_hosts_take_rows_in_turn(lines):
  hosts = [text(lines, num_infeed_hosts=2, infeed_host_index=h) for h in (0, 1)]
  batches = [source.get_next() for source in hosts]
  assert [b.eval_sample_weights.sum() for b in batches] == [2, 1]
  assert all(source.peek_padded() is None for source in hosts)


@pytest.mark.parametrize('path', [None, '/no/such.txt'])
def test_the_file_must_be_named(path):
  with pytest.raises(ValueError, match=f'input_file .* got {path!r}'):
    text(path)


def test_a_file_without_lines(tmp_path):
  (tmp_path / 'lines').touch()
  with pytest.raises(ValueError, match='lines is empty'):
    text(str(tmp_path / 'lines')).get_next()
