# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What a run reports can be read again, and writing never stops the loop."""

from __future__ import annotations

import json
import math
import os
import threading

import jax.numpy as jnp
import pytest

from pax.summaries import jsonl, tags
from pax.summaries import writer as writer_lib
from tests.pax.summaries import event_files


def lines(job_dir) -> list[dict]:
  path = os.path.join(job_dir, writer_lib.METRICS_FILE)
  with open(path, encoding='utf-8') as f:
    return [json.loads(line) for line in f]


def events(job_dir, split):
  """The events of a split, decoded by TensorBoard's format."""
  folder = os.path.join(job_dir, writer_lib.SUMMARIES_DIR, split)
  return event_files.read(folder)


def test_scalars_go_to_jsonl_and_to_tensorboard(tmp_path):
  job_dir = tmp_path
  writer = writer_lib.create_writer(str(job_dir))
  writer.write(0, {'loss': jnp.float32(2.5), 'lr': 0.5})
  writer.write(10, {'loss': 1.25})
  writer.write(10, {'Metrics/x': 3}, split='eval_test_a')
  writer.close()
  recorded = lines(job_dir)
  assert [(r['step'], r['split']) for r in recorded] == [
    (0, 'train'),
    (10, 'train'),
    (10, 'eval_test_a'),
  ]
  assert (recorded[0]['loss'], recorded[0]['lr']) == (2.5, 0.5)
  assert recorded[0]['time'] <= recorded[1]['time']
  train = [(s, v.tag, v.simple_value) for s, v in events(job_dir, 'train')]
  assert train == [(0, 'loss', 2.5), (0, 'lr', 0.5), (10, 'loss', 1.25)]
  [(step, value)] = events(job_dir, 'eval_test_a')
  assert (step, value.tag, value.simple_value) == (10, 'Metrics/x', 3.0)


def test_texts_go_to_tensorboard(tmp_path):
  writer = writer_lib.create_writer(str(tmp_path))
  writer.text(0, 'Model', 'a tree of layers')
  writer.close()
  [(_, value)] = events(tmp_path, 'train')
  assert value.tensor.string_val[0] == b'a tree of layers'
  assert lines(tmp_path) == []


def test_a_resumed_run_appends(tmp_path):
  for step in (1, 2):
    writer = writer_lib.create_writer(str(tmp_path))
    writer.write(step, {'loss': step})
    writer.close()
  assert [r['loss'] for r in lines(tmp_path)] == [1, 2]


def test_lines_stay_json_when_a_loss_does_not(tmp_path):
  writer = writer_lib.create_writer(str(tmp_path))
  writer.write(1, {'loss': math.nan, 'x': -math.inf})
  writer.close()
  [record] = lines(tmp_path)
  assert math.isnan(float(record['loss'])) and float(record['x']) == -math.inf


def test_flush_waits_until_others_can_read(tmp_path):
  writer = writer_lib.create_writer(str(tmp_path))
  writer.write(1, {'loss': 1.0})
  writer.flush()
  assert len(lines(tmp_path)) == 1
  writer.close()


class SlowWriter(writer_lib.NoopWriter):
  def __init__(self):
    self.may_go_on = threading.Event()
    self.written = []

  def write(self, step, scalars, split='train'):
    assert self.may_go_on.wait(10)
    self.written.append((step, scalars))


def test_the_loop_does_not_wait_for_writing():
  slow = SlowWriter()
  writer = writer_lib.AsyncWriter(lambda: slow)
  scalars = {'x': 1.0}
  for step in range(100):
    writer.write(step, scalars)
  scalars['x'] = 2.0  # What was handed over stays as it was.
  assert not slow.written
  slow.may_go_on.set()
  writer.close()
  assert slow.written == [(step, {'x': 1.0}) for step in range(100)]


def test_a_function_is_called_in_the_thread(tmp_path):
  threads = []

  def scalars():
    threads.append(threading.current_thread())
    return {'loss': 2.0}

  writer = writer_lib.create_writer(str(tmp_path))
  writer.write(7, scalars)
  writer.close()
  assert lines(tmp_path)[0]['loss'] == 2.0
  assert threads != [threading.current_thread()]


class BrokenWriter(writer_lib.NoopWriter):
  def write(self, step, scalars, split='train'):
    raise OSError('disk full')


def test_an_error_is_kept_for_the_end():
  writer = writer_lib.AsyncWriter(BrokenWriter)
  writer.write(0, {})
  writer.flush()
  writer.write(1, {})
  with pytest.raises(OSError, match='disk full'):
    writer.close()


def test_a_closed_writer_takes_nothing(tmp_path):
  writer = writer_lib.create_writer(str(tmp_path))
  writer.close()
  writer.close()
  with pytest.raises(ValueError, match='closed'):
    writer.write(0, {})


def test_nothing_is_written_when_disabled(tmp_path):
  writer = writer_lib.create_writer(str(tmp_path / 'job'), enabled=False)
  writer.write(0, {'loss': 1.0})
  writer.text(0, 'a', 'b')
  writer.flush()
  writer.close()
  assert not (tmp_path / 'job').exists()


def test_what_is_not_aggregated_may_be_left_out(tmp_path):
  options = writer_lib.WriterOptions(only_aggregates=True)
  writer = writer_lib.create_writer(str(tmp_path), options=options)
  scalars = {tags.of_key('a_scalar'): 1, tags.of_key('b_aggregate_scalar'): 2}
  writer.write(1, {'loss': 3} | scalars)
  writer.close()
  [record] = lines(tmp_path)
  assert record.keys() - {'step', 'split', 'time'} == {'loss', 'b_scalar'}
  writer = writer_lib.create_writer(str(tmp_path))
  writer.write(2, scalars)
  writer.close()
  assert {'a_scalar', 'b_scalar'} <= lines(tmp_path)[1].keys()


def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path):
  path = tmp_path / writer_lib.METRICS_FILE
  path.write_text('{"step": 1, "split": "train", "time": 0}\n{"step": 2, "s')
  writer = writer_lib.create_writer(str(tmp_path))
  writer.write(2, {'loss': 1})
  writer.close()
  assert [r['step'] for r in jsonl.read(str(path), dict)] == [1, 2]


def test_writes_are_finished_when_they_return_without_a_thread(tmp_path):
  options = writer_lib.WriterOptions(asynchronous=False)
  writer = writer_lib.create_writer(str(tmp_path), options=options)
  writer.write(3, lambda: {'loss': jnp.float32(1.5)})
  assert [(r['step'], r['loss']) for r in lines(tmp_path)] == [(3, 1.5)]
  writer.close()
