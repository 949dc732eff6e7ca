# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tokenization: its result, continuation after a kill, and errors."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import numpy as np
import pytest

from pax.inputs import lm_input
from pax.inputs.tokens import token_arrays, tokenization, tokenizers
from pax.tools import prepare
from praxis import pax_fiddle

BYTES = pax_fiddle.Config(tokenizers.ByteTokenizer)


class DyingTokenizer(tokenizers.ByteTokenizer):
  """Kills its process at a certain text."""

  def encode(self, document: bytes) -> np.ndarray:
    if b'kill' in document:
      os.kill(os.getpid(), signal.SIGKILL)
    return super().encode(document)


class ShiftingTokenizer(tokenizers.ByteTokenizer):
  """Adds a number to ids; it has no vocabulary to compare."""

  shift: int = 0
  bos_id: int = 256

  def encode(self, document: bytes) -> np.ndarray:
    return super().encode(document) + self.shift

  @property
  def vocabulary(self) -> None:
    return None


@pytest.fixture
def small_parts(monkeypatch):
  monkeypatch.setattr(tokenization, '_part_bytes', lambda job: 100)


def write_lines(path: pathlib.Path, texts) -> str:
  path.write_text(''.join(json.dumps({'text': t}) + '\n' for t in texts))
  return str(path)


def job_of(path: str, **kwargs) -> tokenization.TokenizationJob:
  settings = {'tokenizer': BYTES, 'num_workers': 1, **kwargs}
  return tokenization.TokenizationJob(paths=[path], **settings)


def texts_of(output: pathlib.Path) -> list[str]:
  array = token_arrays.open_array(f'{output}.bin')
  tokenizer = tokenizers.ByteTokenizer()
  starts = array.corpus.starts
  return [
    tokenizer.decode(array.tokens[a:b])
    for a, b in zip(starts, starts[1:], strict=False)
  ]


TEXTS = [f'text {i} ' * (i % 7) for i in range(50)]


def test_documents_are_between_bos_and_eos(tmp_path, small_parts):
  path = write_lines(tmp_path / 'x.jsonl', TEXTS)
  summary = tokenization.tokenize_files(job_of(path), str(tmp_path / 'out'))
  assert texts_of(tmp_path / 'out') == TEXTS
  array = token_arrays.open_array(tmp_path / 'out.bin')
  assert array.tokens.dtype == np.uint16
  assert array.tokens[0] == 256 and array.tokens[-1] == 257
  assert array.vocabulary == ('bytes', 'ByteTokenizer')
  assert (array.vocab_size, array.eos_id) == (259, 257)
  assert summary.num_documents == 50
  assert summary.num_tokens == len(array.tokens)
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    *('out.bin', 'out.idx', 'out.json', 'x.jsonl')
  ]
  # Complete output is not written again.
  time = (tmp_path / 'out.bin').stat().st_mtime_ns
  again = tokenization.tokenize_files(job_of(path), str(tmp_path / 'out'))
  assert again == summary
  assert (tmp_path / 'out.bin').stat().st_mtime_ns == time
  write_lines(tmp_path / 'x.jsonl', TEXTS[1:])
  with pytest.raises(ValueError, match='out.idx was made of other files'):
    tokenization.tokenize_files(job_of(path), str(tmp_path / 'out'))


@pytest.mark.parametrize('changed', [{'shift': 1}, {'bos_id': 257}])
def test_the_cache_has_the_ids_of_one_tokenizer(tmp_path, monkeypatch, changed):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  path = write_lines(tmp_path / 'x.jsonl', ['ab'])

  def ids(**fields) -> list[int]:
    config = pax_fiddle.Config(ShiftingTokenizer, **fields)
    output = tokenization.tokenize_cached(job_of(path, tokenizer=config))
    return token_arrays.open_array(output).tokens.tolist()

  first = ids()
  assert first == [256, 97, 98, 257]
  second = ids(**changed)
  shift = changed.get('shift', 0)
  bos_id = changed.get('bos_id', 256)
  assert second == [bos_id, 97 + shift, 98 + shift, 257]
  assert ids() == first


def test_output_with_another_bos_is_refused(tmp_path):
  path = write_lines(tmp_path / 'x.jsonl', ['ab'])
  output = tmp_path / 'out'
  summary = tokenization.tokenize_files(job_of(path), str(output))
  other = pax_fiddle.Config(ShiftingTokenizer, bos_id=257)
  with pytest.raises(ValueError, match='another tokenizer'):
    tokenization.tokenize_files(job_of(path, tokenizer=other), str(output))
  # Earlier versions did not record it.
  record = json.loads((tmp_path / 'out.json').read_text())
  del record['source']['bos_and_eos']
  (tmp_path / 'out.json').write_text(json.dumps(record))
  assert tokenization.tokenize_files(job_of(path), str(output)) == summary


def test_a_dead_worker_is_an_error_and_finished_parts_are_kept(
  tmp_path, monkeypatch, caplog
):
  monkeypatch.setattr(tokenization, '_part_bytes', lambda job: 1000)
  monkeypatch.setattr(tokenization, '_REPORT_SECS', 0)
  texts = [f'{i}' * 500 for i in range(10)]
  texts[7] = 'kill me' * 100
  path = write_lines(tmp_path / 'x.jsonl', texts)
  dying = job_of(
    path, tokenizer=pax_fiddle.Config(DyingTokenizer), num_workers=2
  )
  with pytest.raises(RuntimeError, match='a worker process died.*x.jsonl'):
    tokenization.tokenize_files(dying, str(tmp_path / 'out'))
  finished = len(list((tmp_path / 'out.parts').glob('*.npz')))
  run, num_missing = tokenization._run, []

  def counted(job, folder, missing):
    num_missing.append(len(missing))
    return run(job, folder, missing)

  monkeypatch.setattr(tokenization, '_run', counted)
  tokenization.tokenize_files(job_of(path), str(tmp_path / 'out'))
  # Two documents are a part.
  assert num_missing == [5 - finished]
  assert 'Tokenization continues with the parts in' in caplog.text
  assert 'Tokenized 5 of 5 parts (100 %), about 0 s to go' in caplog.text
  assert texts_of(tmp_path / 'out') == texts


def test_corrupt_records_are_counted_up_to_the_limit(tmp_path, small_parts):
  path = write_lines(tmp_path / 'x.jsonl', TEXTS)
  lines = (tmp_path / 'x.jsonl').read_text().splitlines()
  lines[11], lines[40] = '{"text', '{}'
  (tmp_path / 'x.jsonl').write_text('\n'.join(lines))
  with pytest.raises(ValueError, match=r'line \d+ of .*x.jsonl.*allowed: 1'):
    tokenization.tokenize_files(
      job_of(path, max_corrupt_records=1), str(tmp_path / 'out')
    )
  summary = tokenization.tokenize_files(
    job_of(path, max_corrupt_records=2), str(tmp_path / 'out')
  )
  assert summary.num_corrupt_records == 2
  assert texts_of(tmp_path / 'out') == [
    t for i, t in enumerate(TEXTS) if i not in (11, 40)
  ]


@pytest.mark.parametrize('text', [None, '{', '[]', '{}'])
def test_an_output_without_its_record_is_refused(tmp_path, text):
  path = write_lines(tmp_path / 'x.jsonl', TEXTS)
  output = str(tmp_path / 'out')
  tokenization.tokenize_files(job_of(path), output)
  record = tmp_path / 'out.json'
  record.unlink()
  if text is not None:
    record.write_text(text)
    with pytest.raises(
      ValueError, match='out.json .* a damaged one .*; prepare'
    ):
      token_arrays.open_array(tmp_path / 'out.bin')
  with pytest.raises(
    ValueError, match='out.idx .*, or not by pax prepare; del'
  ):
    tokenization.tokenize_files(job_of(path), output)


def test_parts_with_a_damaged_record_are_made_again(tmp_path):
  path = write_lines(tmp_path / 'x.jsonl', TEXTS)
  parts = tmp_path / 'out.parts'
  parts.mkdir()
  (parts / 'source.json').write_text('{')
  tokenization.tokenize_files(job_of(path), str(tmp_path / 'out'))
  assert texts_of(tmp_path / 'out') == TEXTS and not parts.exists()


def test_errors(tmp_path):
  (tmp_path / 'x.jsonl').touch()
  with pytest.raises(ValueError, match='x.jsonl.*have no documents'):
    tokenization.tokenize_files(job_of(f'{tmp_path}/x.jsonl'), 'out')
  untrained = pax_fiddle.Config(tokenizers.SentencePieceTokenizer)
  with pytest.raises(ValueError, match='must have a model'):
    tokenization.tokenize_files(
      job_of(f'{tmp_path}/x.jsonl', tokenizer=untrained), 'out'
    )


def test_text_files_are_tokenized_into_the_cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  path = write_lines(tmp_path / 'x.jsonl', TEXTS)
  config = lm_input.LanguageModelInput.config(
    data=path, tokenizer_tpl=BYTES, batch_size=2, seq_len=32, is_training=True
  )
  batch = config.Instantiate().get_next()
  (index,) = (tmp_path / 'cache/pax').glob('tokens_*.idx')
  time = index.stat().st_mtime_ns
  again = config.Instantiate()
  np.testing.assert_array_equal(again.get_next().ids, batch.ids)
  assert index.stat().st_mtime_ns == time
  assert set(again.vocabularies()) == {'tokens'}
  [text] = again.ids_to_strings(np.array([[256, 97, 98]]), np.array([3]))
  assert text == 'ab'
  with pytest.raises(ValueError, match='x.jsonl is a file of text and needs'):
    config.set(tokenizer_tpl=None).Instantiate().get_next()


def test_the_tool(tmp_path, capsys):
  for name in 'ab':
    write_lines(tmp_path / f'{name}.jsonl', TEXTS)
  output = tmp_path / 'tokens'
  arguments = ['prepare', f'{tmp_path}/*.jsonl', f'{output}.bin']
  assert prepare.main([*arguments, '--tokenizer=bytes', '--workers=1']) == 0
  assert '100 documents' in capsys.readouterr().out
  assert texts_of(output) == TEXTS * 2
  with pytest.raises(ValueError, match='must be bytes.*got .none'):
    prepare.main([*arguments, '--tokenizer=none'])
  with pytest.raises(ValueError, match='must be files of text and an output'):
    prepare.main(['prepare', 'out'])
