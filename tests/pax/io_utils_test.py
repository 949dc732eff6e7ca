# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files of outputs are whole, found again, and readable without Pax."""

from __future__ import annotations

import json
import os

import jax.numpy as jnp
import numpy as np
import pytest

from pax import io_utils
from pax.files import tf_records

EVAL = io_utils.EvaluationMode.EVAL


def test_jsonl_and_npz(tmp_path):
  file = io_utils.output_file(tmp_path, EVAL, 'held.out', 7)
  assert file == tmp_path / 'eval_out' / 'held.out' / 'eval_out_7_shard_0'
  pairs = [
    ('a', {'x': jnp.arange(2), 'text': b'hi', 'half': np.float16(0.5)}),
    (None, {'y': jnp.bfloat16(2.0), 'flag': np.bool_(True)}),
  ]
  io_utils.write_key_value_pairs(file, pairs)
  lines = file.with_suffix('.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {'x': [0, 1], 'text': 'hi', 'half': 0.5},
    {'y': 2.0, 'flag': True},
  ]
  found = io_utils.load_outputs(tmp_path, 'held.out', 'eval')
  assert [key for key, _ in found] == ['a', None]
  assert isinstance(found[0][1]['x'], np.ndarray)
  assert found[0][1]['half'].dtype == np.float16
  assert len(list(file.parent.iterdir())) == 2


def test_arrays_of_other_packages_are_written(tmp_path):
  class Tensor:
    def __array__(self, dtype=None, copy=None):
      return np.array([1.5, 2.0], np.float32)

  file = io_utils.output_file(tmp_path, EVAL, 'held.out', 7)
  io_utils.write_key_value_pairs(file, [('key', {'x': Tensor()})])
  [line] = file.with_suffix('.jsonl').read_text().splitlines()
  assert json.loads(line) == {'x': [1.5, 2.0]}
  [(key, values)] = io_utils.load_outputs(tmp_path, 'held.out', 'eval')
  assert key == 'key'
  np.testing.assert_array_equal(values['x'], [1.5, 2.0])


def test_which_outputs_is_asked_where_there_are_several(tmp_path):
  for step in (1, 2):
    file = io_utils.output_file(tmp_path, EVAL, 'x', step)
    io_utils.write_key_value_pairs(file, [(None, step)])
  with pytest.raises(ValueError, match=r'one of \[1, 2\]'):
    io_utils.load_outputs(tmp_path, 'x', 'eval')
  assert io_utils.load_outputs(tmp_path, 'x', 'eval', 2) == [(None, 2)]


def test_pickles_of_older_versions_are_refused(tmp_path):
  folder = tmp_path / 'eval_out' / 'x'
  folder.mkdir(parents=True)
  # Unpickling it would call exit.
  (folder / 'eval_out_3_shard_0.pickle').write_bytes(b'cbuiltins\nexit\n(tR.')
  with pytest.raises(ValueError, match=r'steps \[3\] .* older version.*jsonl'):
    io_utils.load_outputs(tmp_path, 'x', 'eval')


def test_no_pickle(tmp_path):
  file = tmp_path / 'out'
  io_utils.write_key_value_pairs(file, [], write_pickle=False)
  assert [p.name for p in tmp_path.iterdir()] == ['out.jsonl']


def test_what_is_undone_is_remembered(tmp_path):
  with io_utils.checkpoint_progress(tmp_path, 3, EVAL):
    assert io_utils.unfinished_step(tmp_path, EVAL) == 3
  assert io_utils.unfinished_step(tmp_path, EVAL) is None
  with pytest.raises(OSError, match='gone'):
    with io_utils.checkpoint_progress(tmp_path, 4, EVAL):
      raise OSError('gone')
  assert io_utils.unfinished_step(tmp_path, EVAL) == 4


def test_what_was_written_before_a_job_was_stopped(tmp_path):
  file = io_utils.output_file(tmp_path, EVAL, 'x', 3)
  last = file.with_suffix('.jsonl')

  def is_written(step=3):
    return io_utils.is_written_since_start(tmp_path, EVAL, last, step)

  # Training may have evaluated the same step: that does not count.
  io_utils.write_key_value_pairs(file, [])
  os.utime(last, (1, 1))
  assert not is_written()
  for writes in (False, True):
    with pytest.raises(OSError, match='gone'):
      with io_utils.checkpoint_progress(tmp_path, 3, EVAL):
        assert not is_written()
        if writes:
          io_utils.write_key_value_pairs(file, [])
        raise OSError('gone')
    assert is_written() is writes and not is_written(4)
  # The same step of another checkpoint.
  with io_utils.checkpoint_progress(tmp_path, 3, EVAL, 'another'):
    os.utime(last, (1, 1))
    assert not is_written()
  with io_utils.checkpoint_progress(tmp_path, 4, EVAL):
    assert not is_written()


def test_the_end_of_training_is_told_and_taken_back(tmp_path):
  assert io_utils.training_end(tmp_path) is None
  io_utils.record_training_end(tmp_path, 5)
  assert io_utils.training_end(tmp_path) == 5
  io_utils.clear_training_end(tmp_path)
  assert io_utils.training_end(tmp_path) is None


def test_shards_take_turns(tmp_path):
  writer = io_utils.ShardedParallelWriter(tmp_path / 'out', 2)
  for chunk in ([b'a', b'b'], [b'c'], [b'd']):
    writer.write(chunk)
  assert {p.suffix for p in tmp_path.iterdir()} == {'.part'}
  writer.close()
  found = []
  for name in ('out.tfrecord-00000-of-00002', 'out.tfrecord-00001-of-00002'):
    with (tmp_path / name).open('rb') as file:
      found.append(list(tf_records.read(file)))
  assert found == [[b'a', b'b', b'd'], [b'c']]


def test_discarded_shards_leave_those_before(tmp_path):
  for ends in ('close', 'discard'):
    writer = io_utils.ShardedParallelWriter(tmp_path / 'out', 1)
    writer.write([ends.encode()])
    getattr(writer, ends)()
  (left,) = tmp_path.iterdir()
  with left.open('rb') as file:
    assert list(tf_records.read(file)) == [b'close']
