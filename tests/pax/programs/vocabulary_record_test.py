# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A job refuses vocabularies that its model was not trained with."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from pax.inputs.text import packed_text
from pax.inputs.tokens import tokenizers
from pax.programs import vocabulary_record
from praxis import base_input, pax_fiddle

REFUSED = vocabulary_record.VocabularyError


class Input(base_input.BaseInput):
  """An input with vocabularies as a test sets them."""

  digests: dict[str, str] = pax_fiddle.instance_field(dict)

  def vocabularies(self):
    return {
      name: base_input.Vocabulary(digest, f'/models/{digest}')
      for name, digest in self.digests.items()
    }


def make(**digests):
  return Input.config(name='rows', batch_size=1, digests=digests).Instantiate()


def record(path, has_checkpoints=True, **digests):
  vocabulary_record.record(
    str(path), make(**digests), has_checkpoints=has_checkpoints
  )


def test_another_vocabulary_is_refused(tmp_path):
  record(tmp_path, tokens='old')
  record(tmp_path, tokens='old')
  with pytest.raises(REFUSED) as e:
    record(tmp_path, tokens='new')
  for part in ('new (/models/new)', 'old (/models/old)', "input 'rows'"):
    assert part in str(e.value)
  assert f'{tmp_path / vocabulary_record.FILE}' in str(e.value)
  assert 'tokenizer.model_file=/models/old' in str(e.value)
  with pytest.raises(REFUSED, match='new'):
    vocabulary_record.check([None, tmp_path], [make(tokens='new')])
  vocabulary_record.check([tmp_path], [make(tokens='old'), make(other='new')])


def test_a_vocabulary_without_a_file_is_not_set_by_one(tmp_path, monkeypatch):
  record(tmp_path, tokens='old')
  file = tmp_path / vocabulary_record.FILE
  monkeypatch.setattr(vocabulary_record, '_checksum', lambda _: '')
  content = json.loads(file.read_text()) | {'sha256': ''}
  content['vocabularies']['tokens']['source'] = 'ByteTokenizer'
  file.write_text(json.dumps(content))
  with pytest.raises(
    REFUSED, match=r'Use the old one or train in another --jo'
  ):
    vocabulary_record.check([tmp_path], [make(tokens='new')])


def test_a_job_without_checkpoints_may_change_its_vocabulary(tmp_path):
  record(tmp_path, tokens='old')
  record(tmp_path, has_checkpoints=False, tokens='new')
  vocabulary_record.check([tmp_path], [make(tokens='new')])


def test_jobs_that_read_checkpoints_elsewhere(tmp_path):
  record(tmp_path, tokens='old')
  checkpoints = tmp_path / 'checkpoints'
  with pytest.raises(REFUSED, match='trained with old'):
    vocabulary_record.check([checkpoints], [make(tokens='new')])


def test_a_record_goes_with_converted_variables(tmp_path):
  for name in 'abc':
    (tmp_path / name).mkdir()
  record(tmp_path / 'a', tokens='old')
  b, c = (str(tmp_path / name) for name in 'bc')
  vocabulary_record.copy(tmp_path / 'a' / 'checkpoints', b)
  with pytest.raises(REFUSED, match='new'):
    vocabulary_record.check([b], [make(tokens='new')])
  vocabulary_record.copy(None, c)
  vocabulary_record.copy(c, b)
  vocabulary_record.check([b, c], [make(tokens='old')])


def test_features_are_added(tmp_path):
  record(tmp_path, a='1')
  record(tmp_path, b='2')
  with pytest.raises(REFUSED):
    record(tmp_path, a='2')
  with pytest.raises(REFUSED):
    record(tmp_path, b='1')


def test_nothing_is_written_without_vocabularies(tmp_path):
  record(tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_damaged_record_is_set_aside(tmp_path, caplog):
  record(tmp_path, tokens='old')
  file = tmp_path / vocabulary_record.FILE
  content = file.read_bytes()
  for position in range(0, len(content), 7):
    damaged = bytearray(content)
    damaged[position] ^= 4
    file.write_bytes(damaged)
    if _values(damaged) == _values(content):
      continue
    caplog.clear()
    record(tmp_path, tokens='old')
    assert 'vocabularies.json was damaged' in caplog.text
    assert file.read_bytes() == content


def _values(content):
  try:
    return json.loads(content)
  except ValueError:
    return None


def test_processes_with_different_vocabularies(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 3)

  def gather(own):
    other = own.copy()
    other[0] ^= 1
    return np.stack([own, other, own])

  monkeypatch.setattr(multihost_utils, 'process_allgather', gather)
  with pytest.raises(REFUSED, match=r'process 0 has .*"a".* processes \[1\]'):
    record(tmp_path, tokens='a')
  assert not list(tmp_path.iterdir())
  monkeypatch.setattr(
    multihost_utils, 'process_allgather', lambda own: np.stack([own] * 3)
  )
  record(tmp_path, tokens='a')


def test_inputs_of_text_have_the_vocabulary_of_their_tokenizer(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'text').write_text('def f(x):\n  return x + 1\n' * 90)

  def vocabulary(tokenizer):
    config = packed_text.TextLmInput.config(
      name='train',
      files=str(tmp_path / 'text'),
      batch_size=1,
      held_out_percent=0.0,
      tokenizer=tokenizer,
    )
    children = {'a': config}
    multi = base_input.MultiInput.config(input_to_params=children)
    single = config.Instantiate().vocabularies()
    assert multi.Instantiate().vocabularies() == {'a.tokens': single['tokens']}
    return single['tokens']

  assert vocabulary(tokenizers.ByteTokenizer.config()).digest == 'bytes'
  digest, source = vocabulary(
    tokenizers.SentencePieceTokenizer.config(num_pieces=290)
  )
  assert digest.startswith('sha256:') and digest[7:] in source
  again = tokenizers.SentencePieceTokenizer.config(model_file=source)
  assert vocabulary(again) == (digest, source)
