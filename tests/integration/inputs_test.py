# SPDX-License-Identifier: Apache-2.0
"""Data that cannot be read: one message with file and record, never a hang."""

# bazel: size=large
from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable, Mapping

import pytest

from pax import main
from pax.inputs.tokens import tokenizers
from tests.integration import binary
from tests.testing import data_sets, polling, programs

EXP = 'pax.tasks.lm.params.quickstart.TinyLm'
SETTINGS = {
  'BATCH_SIZE': 4,
  'EVAL_ON_TEST': True,
  'HIDDEN_DIMS': 16,
  'MAX_SEQ_LEN': 16,
  'MODEL_DIMS': 16,
  'NUM_HEADS': 1,
  'NUM_LAYERS': 1,
  'NUM_TRAIN_STEPS': 2,
  'SAMPLE_PROMPT': '',
  'TOKENIZER': 'bytes',
  'VOCAB_SIZE': 300,
}
TEXTS = ['one document', 'another document', 'a third document'] * 9


def words(settings: Mapping[str, object]) -> list[str]:
  return [
    f'--set={name}={value}' for name, value in (SETTINGS | settings).items()
  ]


def missing_file(folder: pathlib.Path) -> dict[str, object]:
  return {'TRAIN_DATA': folder / 'x.jsonl'}


def fifo(folder: pathlib.Path) -> dict[str, object]:
  os.mkfifo(folder / 'x.jsonl')
  return {'TRAIN_DATA': folder / 'x.jsonl'}


def corrupt_line(folder: pathlib.Path) -> dict[str, object]:
  data_sets.write_jsonl(folder / 'x.jsonl', TEXTS)
  with (folder / 'x.jsonl').open('a') as f:
    f.write('\n{"text": 5}\n')
  return {'TRAIN_DATA': folder / 'x.jsonl'}


def truncated_tokens(folder: pathlib.Path) -> dict[str, object]:
  path = data_sets.write('megatron', folder)
  os.truncate(path, os.path.getsize(path) - 2)
  return {'TRAIN_DATA': path}


def empty_shards(folder: pathlib.Path) -> dict[str, object]:
  for name in 'ab':
    (folder / f'{name}.jsonl').touch()
  return {'TRAIN_DATA': folder}


def large_vocabulary(folder: pathlib.Path) -> dict[str, object]:
  return {'TRAIN_DATA': data_sets.write('npy', folder), 'VOCAB_SIZE': 99}


def large_tokenizer(folder: pathlib.Path) -> dict[str, object]:
  data_sets.write_jsonl(folder / 'x.jsonl', TEXTS)
  return {'TRAIN_DATA': folder / 'x.jsonl', 'VOCAB_SIZE': 200}


def large_tokenizer_of_text(folder: pathlib.Path) -> dict[str, object]:
  (folder / 'x.txt').write_text('\n'.join(TEXTS))
  # Its padding, the last id, is in no batch.
  return {
    'TRAIN_FILES': folder / 'x.txt',
    'VOCAB_SIZE': 258,
    'HELD_OUT_PERCENT': 0,
    'EVAL_ON_TEST': False,
  }


def other_tokenizer(folder: pathlib.Path) -> dict[str, object]:
  vocabularies = {
    'a': tokenizers.ByteTokenizer.config().Instantiate().vocabulary
  }
  vocabularies['b'] = ('sha256:1', '/b.model')
  paths = [
    data_sets.write_documents(
      folder / name,
      [[256, *text.encode(), 257] for text in TEXTS],
      {'vocabulary': vocabulary, 'vocab_size': 259, 'eos_id': 257},
    )
    for name, vocabulary in vocabularies.items()
  ]
  return {'TRAIN_DATA': paths[0], 'EVAL_DATA': paths[1]}


CASES: dict[Callable[[pathlib.Path], dict[str, object]], str] = {
  missing_file: "no file of tokens or text matches '{}/x.jsonl'",
  fifo: '{}/x.jsonl must be a file of text',
  corrupt_line: """line 28 of {}/x.jsonl must be a JSON object with a text""",
  truncated_tokens: '{}/megatron.bin must have the',
  empty_shards: "['{}/a.jsonl', '{}/b.jsonl'] have no documents",
  large_vocabulary: 'must have ids below 99, the vocabulary size of the model',
  large_tokenizer: 'has the ids of a tokenizer of 259 pieces, but the',
  large_tokenizer_of_text: "tokens in input 'train' has 259 ids, but the",
  other_tokenizer: "the data of 'held_out' must have one tokenizer, got",
}


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.__name__)
def test_data_that_cannot_be_read(tmp_path, capsys, monkeypatch, case):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (folder := tmp_path / 'data').mkdir()
  code = main.main(
    [
      'pax',
      f'--exp={EXP}',
      f'--job_log_dir={tmp_path / "job"}',
      '--compilation_cache_dir=',
      *words(case(folder)),
    ]
  )
  lines = capsys.readouterr().err.strip().splitlines()
  errors = [line for line in lines if line.startswith('pax: error')]
  assert code == 1 and len(errors) == 1, lines
  assert CASES[case].replace('{}', str(folder)) in errors[0]


def test_a_corrupt_record_within_the_limit_is_left_out(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  settings = corrupt_line(tmp_path) | {'MAX_CORRUPT_RECORDS': 1}
  completed = binary.run(EXP, tmp_path / 'job', *words(settings))
  assert completed.returncode == 0, completed.stderr
  log = (tmp_path / 'job' / 'logs' / 'train_0.log').read_text()
  assert 'A corrupt record is left out: line 28 of' in log


@pytest.mark.nightly
def test_a_mixture_that_changes_on_the_way(tmp_path):
  """A job that gets a stage before it begins reads what one with it reads."""
  first = data_sets.write_documents(tmp_path / 'a', [[1, 2, 3] * 9] * 99)
  second = data_sets.write_documents(tmp_path / 'b', [[4, 5] * 9] * 99)
  data = words({'TRAIN_DATA': first, 'SUMMARY_INTERVAL_STEPS': 1})
  # In the middle of the third batch.
  stages = [f'--set=TRAIN_DATA_STAGES={{10: {{{second!r}: 1.0}}}}']

  def train(job: str, num_steps: int, *more: str) -> dict[int, bytes]:
    words = [*data, f'--set=task.train.num_train_steps={num_steps}', *more]
    completed = binary.run(EXP, tmp_path / job, *words)
    assert completed.returncode == 0, completed.stderr
    return binary.loss_bits(tmp_path / job)

  expected = train('straight', 5, *stages)
  train('stopped', 2)
  assert train('stopped', 5, *stages) == expected
  assert train('without', 5)[3] != expected[3]


def test_a_dead_worker_process_is_an_error(tmp_path, monkeypatch):
  data_sets.write('array_record', tmp_path)
  path = tmp_path / 'array_record_1.array_record'
  monkeypatch.setenv(data_sets.GRAIN_RECORDS, str(path))
  settings = {
    'GRAIN_DATASET': f'{data_sets.__name__}:grain_rows',
    'GRAIN_WORKERS': 1,
    'NUM_TRAIN_STEPS': 10**6,
    'SUMMARY_INTERVAL_STEPS': 1,
  }
  job = binary.start(EXP, tmp_path / 'job', *words(settings))
  binary.wait_for_losses(tmp_path / 'job', 1)
  polling.wait_until(lambda: programs.workers_of(job.pid))
  for worker in programs.workers_of(job.pid):
    os.kill(worker, signal.SIGKILL)
  completed = job.wait()
  assert completed.returncode == 1
  assert 'pax: error: ' in completed.stderr
  assert 'Worker process was terminated unexpectedly' in completed.stderr
