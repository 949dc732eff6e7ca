# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Decoding inverts encoding; a trained model is cached."""

from __future__ import annotations

import pytest

from pax.inputs import tokenizers

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
  [kept] = cache.iterdir()

  monkeypatch.setattr(
    tokenizers.SentencePieceTokenizer, '_train', lambda *_: pytest.fail()
  )
  again = sentencepiece()
  again.fit(corpus)
  assert list(again.encode(TEXT.encode())) == list(ids)

  given = sentencepiece(model_file=str(kept))
  given.fit([b'other text'])
  assert list(given.encode(TEXT.encode())) == list(ids)


def test_every_host_trains_the_same_model(cache, corpus):
  models = [sentencepiece(max_lines=500)._train(corpus) for _ in range(3)]
  assert len(set(models)) == 1


def test_sentencepiece_without_a_model_says_so(tmp_path):
  with pytest.raises(ValueError, match='no model yet'):
    sentencepiece().encode(b'')
  with pytest.raises(ValueError, match='does not exist'):
    sentencepiece(model_file=str(tmp_path / 'none'))
