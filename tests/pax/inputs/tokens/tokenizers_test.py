# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Decoding inverts encoding; a trained model is cached."""

from __future__ import annotations

import pathlib
import sys

import pytest

from pax.inputs.tokens import huggingface_tokenizers, tokenizers
from tests.testing import programs

TEXT = 'def f(x):\n\treturn  x + 1  # déjà vu \u4e16\n\n\n'


def test_bytes_are_ids():
  tokenizer = tokenizers.ByteTokenizer.config().Instantiate()
  ids = tokenizer.encode('aé'.encode())
  assert list(ids) == [97, 195, 169]
  special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id]
  assert sorted([*special, 255])[0] == 255
  assert max(special) < tokenizer.vocab_size
  assert tokenizer.decode([*special[:1], *ids, *special[1:]]) == 'aé'
  assert tokenizer.decode([97, 195]) == 'a\ufffd'


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return tmp_path / 'pax'


@pytest.fixture
def corpus():
  words = 'def class return yield import from lambda while'.split()
  lines = [
    f'{" " * (i % 5)}{words[i % 8]} {words[i * 3 % 7]}_{i % 90}: x = {i}'
    for i in range(2000)
  ]
  return [TEXT.encode(), '\n'.join(lines).encode()]


def sentencepiece(**kwargs):
  return tokenizers.SentencePieceTokenizer.config(
    num_pieces=400, **kwargs
  ).Instantiate()


def test_sentencepiece_is_trained_once_per_corpus(cache, corpus, monkeypatch):
  tokenizer = sentencepiece()
  tokenizer.fit(corpus)
  ids = tokenizer.encode(TEXT.encode())
  assert tokenizer.decode(ids) == TEXT
  assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.eos_id]) == TEXT
  assert ids.max() < tokenizer.vocab_size == 400
  assert len(tokenizer.encode(corpus[1])) < len(corpus[1]) / 2
  [kept] = cache.glob('*.model')

  monkeypatch.setattr(
    tokenizers.SentencePieceTokenizer, '_train', lambda *_: pytest.fail()
  )
  again = sentencepiece()
  again.fit(corpus)
  assert list(again.encode(TEXT.encode())) == list(ids)

  given = sentencepiece(model_file=str(kept))
  given.fit([b'other text'])
  assert list(given.encode(TEXT.encode())) == list(ids)


def test_a_damaged_cache_is_trained_again(cache, corpus, monkeypatch, caplog):
  tokenizer = sentencepiece()
  tokenizer.fit(corpus)
  ids = list(tokenizer.encode(TEXT.encode()))
  [cached] = cache.glob('*.model')
  model = cached.read_bytes()
  trained = []
  monkeypatch.setattr(
    tokenizers.SentencePieceTokenizer,
    '_train',
    lambda *unused: trained.append(1) or model,
  )
  flips = list(range(0, len(model), max(1, len(model) // 40)))
  damaged = [_flipped(model, position) for position in flips]
  damaged += [b'', model[:100], model + b'x']
  for content in damaged:
    cached.write_bytes(content)
    caplog.clear()
    again = sentencepiece()
    again.fit(corpus)
    assert list(again.encode(TEXT.encode())) == ids
    assert again.vocabulary == tokenizer.vocabulary
    [warning] = [r for r in caplog.records if r.levelname == 'WARNING']
    assert f'{cached} is damaged; it is trained again' in warning.message
    assert cached.read_bytes() == model
  assert len(trained) == len(damaged)


def _flipped(content: bytes, position: int) -> bytes:
  flipped = bytearray(content)
  flipped[position] ^= 1 << position % 8
  return bytes(flipped)


def test_a_model_file_that_is_none(tmp_path):
  path = tmp_path / 'model'
  path.write_bytes(b'\xff' * 100)
  with pytest.raises(ValueError, match='model_file must .* is damaged'):
    sentencepiece(model_file=str(path))


def model_with(path, **special_ids):
  sentencepiece = pytest.importorskip('sentencepiece')
  with path.open('wb') as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(['hello world', 'the quick brown fox'] * 20),
      model_writer=file,
      vocab_size=40,
      model_type='bpe',
      minloglevel=2,
      **special_ids,
    )
  return str(path)


def test_a_model_without_bos_starts_documents_with_eos(tmp_path):
  # The models of T5.
  ids = {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1}
  tokenizer = sentencepiece(model_file=model_with(tmp_path / 'a.model', **ids))
  assert tokenizer.bos_id == tokenizer.eos_id == 1
  prompt = tokenizer.encode_prompt(b'hello')
  assert prompt[0] == 1
  assert tokenizer.decode(prompt) == 'hello'


def test_a_model_without_eos_is_refused(tmp_path):
  path = model_with(tmp_path / 'a.model', eos_id=-1)
  with pytest.raises(ValueError, match='a.model.* without one.*eos_id'):
    _ = sentencepiece(model_file=path).eos_id


def test_a_cache_that_cannot_be_written(tmp_path, corpus, monkeypatch, caplog):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  tokenizer = sentencepiece()
  tokenizer.fit(corpus)
  assert tokenizer.decode(tokenizer.encode(TEXT.encode())) == TEXT
  assert 'is not cached' in caplog.text


def test_processes_that_start_together_train_once(cache, corpus, tmp_path):
  text, log = tmp_path / 'text', tmp_path / 'log'
  text.write_bytes(b'\n'.join(corpus))
  words = ['tests.pax.inputs.tokens.tokenizers_test', str(log), str(text)]
  env = programs.environment() | {'XDG_CACHE_HOME': str(cache.parent)}
  processes = [programs.Program(words, env, _PRELOADED) for _ in range(3)]
  ended = [process.wait() for process in processes]
  assert [each.returncode for each in ended] == [0, 0, 0], ended[0].stderr
  assert len({each.stdout for each in ended}) == 1
  assert log.read_text() == 'trained\n'


_PRELOADED = ('pax.inputs.tokens.tokenizers', 'pytest', 'sentencepiece')


def _fit(log: str, text: str) -> None:
  """Prints the digest of the tokenizer of a file; logs that it is trained."""
  cls = tokenizers.SentencePieceTokenizer
  train = cls._train

  def logged_train(self, documents):
    with open(log, 'a') as file:
      file.write('trained\n')
    return train(self, documents)

  cls._train = logged_train
  tokenizer = sentencepiece()
  tokenizer.fit([pathlib.Path(text).read_bytes()])
  print(tokenizer.vocabulary.digest)


def test_every_host_trains_the_same_model(cache, corpus):
  models = [sentencepiece(max_lines=500)._train(corpus) for _ in range(3)]
  assert len(set(models)) == 1


def test_sentencepiece_without_a_model_says_so(tmp_path):
  with pytest.raises(ValueError, match='no model yet'):
    sentencepiece().encode(b'')
  with pytest.raises(ValueError, match='does not exist'):
    sentencepiece(model_file=str(tmp_path / 'none'))


if __name__ == '__main__':
  _fit(*sys.argv[1:])


def test_a_missing_file_of_a_hugging_face_tokenizer_is_named(tmp_path):
  file, config = tmp_path / 'tokenizer.json', tmp_path / 'config.json'
  by_name = huggingface_tokenizers.by_name
  with pytest.raises(ValueError, match=f'there is no {file} and no {config}$'):
    by_name(str(file))
  file.write_text('{}')
  for name in (file, tmp_path):
    with pytest.raises(ValueError, match=f'there is no {config}$'):
      by_name(str(name))
  config.write_text('{}')
  assert by_name(str(file)).folder == by_name(str(tmp_path)).folder
  with pytest.raises(ValueError, match='must be bytes, .* got'):
    by_name('gpt2')
