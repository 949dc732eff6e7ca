# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A damaged side file is set aside, one that cannot be written is left out."""

from __future__ import annotations

import errno
import json
import os
import pathlib

import pytest

from pax import io_utils
from pax.files import side_files
from pax.runner import run_record
from pax.studies import study
from pax.summaries import backends, goodput, jsonl, model_text, plots, writer

EVAL = io_utils.EvaluationMode.EVAL
TRIAL = (
  '{"id": 1, "settings": {"A": "1"}, "status": "done", "reward": 2.0,'
  ' "step": 1, "metrics": {}, "reason": ""}'
)


@pytest.fixture(autouse=True)
def new_warnings():
  side_files.reset_warnings()


def restart_eval(directory):
  assert io_utils.unfinished_step(directory, EVAL) is None
  with io_utils.checkpoint_progress(directory, 7, EVAL):
    assert io_utils.unfinished_step(directory, EVAL) == 7


def restart_goodput(directory):
  recorder = goodput.Recorder(str(directory / goodput.GOODPUT_FILE))
  recorder.mark_saved(3)
  assert recorder.summary_line()
  recorder.close()
  records = goodput.read(str(directory / goodput.GOODPUT_FILE))
  assert records[-1]['step'] == 3


def restart_metrics(directory):
  out = writer.create_writer(str(directory))
  out.write(5, {'loss': 1.0})
  out.close()
  assert plots.read_metrics(str(directory)) == {'train': {'loss': {5: 1.0}}}
  assert plots.loss_curve(str(directory))


def restart_study(directory):
  assert study.read(str(directory / study.STUDY_FILE)) == []
  jsonl.repair(str(directory / study.STUDY_FILE), study.parse)


def restart_run_record(directory):
  run_record.append(str(directory), run_record.RunRecord, 'train', ['pax'])
  records = json.loads((directory / run_record.FILE).read_text())
  assert len(records) == 1


def restart_provenance(directory):
  model_text.write_provenance(writer.NoopWriter(), str(directory))


def restart_service(directory):
  file = str(directory / 'wandb_run_id_train.txt')
  assert backends.read_id(file) is None
  backends.write_id(file, 'abc')
  assert backends.read_id(file) == 'abc'


FILES = {
  '_internal_artifacts/_eval_progress.json': restart_eval,
  'goodput.jsonl': restart_goodput,
  'metrics.jsonl': restart_metrics,
  'run.json': restart_run_record,
  'study.jsonl': restart_study,
  'train_state_provenance.txt': restart_provenance,
  'wandb_run_id_train.txt': restart_service,
}
DAMAGES = {
  'not UTF-8': b'\xff\xfe{"step": 1}\n',
  'NUL bytes': b'\0' * 100 + b'\n',
  'a number': b'17\n',
  'an object': b'{"nothing": []}\n',
  'nested': b'[' * 100_000 + b'\n',
  'no JSON': b'step\x01 7\n',
}
CASES = [
  (name, damage)
  for name in FILES
  for damage in DAMAGES
  # Any text is valid in the others.
  if 'json' in name or damage == 'not UTF-8'
]


@pytest.mark.parametrize(('name', 'damage'), CASES)
def test_damaged_content(tmp_path, caplog, name, damage):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_bytes(DAMAGES[damage])
  FILES[name](tmp_path)
  damaged = path.with_name(f'{path.name}.damaged')
  assert damaged.read_bytes() == DAMAGES[damage]
  moved = [m for m in caplog.messages if damaged.name in m]
  assert len(moved) == 1 and str(path) in moved[0], caplog.messages
  caplog.clear()
  if name == study.STUDY_FILE:
    FILES[name](tmp_path)
  assert not caplog.messages


@pytest.mark.parametrize('name', FILES)
def test_a_directory_in_its_place(tmp_path, caplog, name):
  path = tmp_path / name
  path.mkdir(parents=True)
  FILES[name](tmp_path)
  assert path.with_name(f'{path.name}.damaged').is_dir()
  assert [m for m in caplog.messages if '.damaged' in m]


def test_an_empty_file(tmp_path, caplog):
  path = tmp_path / '_internal_artifacts' / '_eval_progress.json'
  path.parent.mkdir()
  path.write_text('')
  restart_eval(tmp_path)
  assert str(path) in caplog.text and '.damaged' in caplog.text


def test_a_file_in_place_of_a_directory(tmp_path, caplog):
  (tmp_path / '_internal_artifacts').write_text('a file')
  restart_eval(tmp_path)
  assert (tmp_path / '_internal_artifacts.damaged').read_text() == 'a file'


def test_the_end_of_training_survives_damage(tmp_path, caplog):
  (tmp_path / 'checkpoints' / 'checkpoint_00000012').mkdir(parents=True)
  (tmp_path / 'checkpoints' / 'checkpoint_00000012' / 'metadata').write_text('')
  io_utils.record_training_end(tmp_path, 12)
  file = tmp_path / '_internal_artifacts' / '_training_end.json'
  file.write_text('{')
  assert [io_utils.training_end(tmp_path) for _ in range(3)] == [12] * 3
  assert len(caplog.messages) == 1


def test_damaged_lines_are_moved_and_the_others_stay(tmp_path, caplog):
  path = tmp_path / study.STUDY_FILE
  lines = [TRIAL.encode(), b'{"id": 2, "set', b'\xff', b'', b'{"id": "x"}']
  path.write_bytes(b'\n'.join([*lines, TRIAL.encode()]))
  other = jsonl.Appender(str(path))  # Another process.
  trials = jsonl.repair(str(path), study.parse)
  assert [trial.id for trial in trials] == [1, 1]
  other.append({'id': 3})
  other.close()
  moved = path.with_name(f'{path.name}.damaged').read_bytes()
  assert moved.splitlines() == [b'\xff', b'{"id": "x"}']
  assert '2 damaged lines' in caplog.text
  after = path.read_bytes().splitlines()
  # A line that a kill truncated is no damage.
  assert after[:2] == lines[:2] and after[-2:] == [TRIAL.encode(), b'{"id": 3}']


def test_earlier_damage_is_not_overwritten(tmp_path):
  for count in range(3):
    (tmp_path / 'x.json').write_text(str(count))
    assert side_files.read_json(tmp_path / 'x.json', dict) is None
  names = ['x.json.damaged', 'x.json.damaged.1', 'x.json.damaged.2']
  assert [(tmp_path / n).read_text() for n in names] == ['0', '1', '2']


def test_errors_of_writing_are_one_warning_per_cause(tmp_path, caplog):
  caplog.set_level('WARNING')
  for number in (errno.ENOSPC, errno.ENOSPC, errno.EIO):
    with side_files.tolerate_errors(tmp_path / 'x'):
      raise OSError(number, os.strerror(number))
  assert [m.split(': ')[1].split(';')[0] for m in caplog.messages] == [
    'No space left on device',
    'Input/output error',
  ]


def test_records_continue_when_the_disk_has_space_again(
  tmp_path, caplog, monkeypatch
):
  caplog.set_level('WARNING')
  out = writer.create_writer(str(tmp_path))
  recorder = goodput.Recorder(str(tmp_path / 'goodput.jsonl'))

  def save(step):
    out.write(step, {'loss': 1.0})
    out.flush()
    recorder.mark_saved(step)

  def short_write(descriptor, line, write=os.write):
    # As on a disk that becomes full within a line.
    if len(line) > 40:
      return write(descriptor, line[:20])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  save(1)
  with monkeypatch.context() as patch:
    patch.setattr(os, 'write', short_write)
    save(2)
    save(3)
  save(4)
  save(5)
  out.close()
  recorder.close()
  metrics = jsonl.read(str(tmp_path / 'metrics.jsonl'), writer.parse_record)
  assert [record['step'] for record in metrics] == [1, 4, 5]
  records = goodput.read(str(tmp_path / 'goodput.jsonl'))
  assert [r['step'] for r in records if r.get('saved')] == [1, 4, 5]
  assert len(caplog.messages) == 1 and 'No space left' in caplog.text


def test_directories_are_made_below_an_existing_root_only(tmp_path):
  root = tmp_path / 'job'
  with pytest.raises(FileNotFoundError):
    side_files.make_directories(root, 'a', 'b')
  assert not root.exists()
  root.mkdir()
  assert side_files.make_directories(root, 'a/b', 'c').is_dir()
  assert isinstance(side_files.make_directories(root, 'a'), pathlib.Path)
