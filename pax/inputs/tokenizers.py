# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: bytes, and SentencePiece."""

from __future__ import annotations

import abc
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from pax import atomic_file
from praxis import base_hyperparams


class Tokenizer(base_hyperparams.FiddleBaseParameterizable, abc.ABC):
  """Maps text to token ids and back."""

  def fit(self, documents: Sequence[bytes]) -> None:
    """Learns the vocabulary from `documents`, if the tokenizer learns one."""

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """Upper bound of all ids, exclusive."""

  @property
  @abc.abstractmethod
  def bos_id(self) -> int:
    """Id before each document."""

  @property
  @abc.abstractmethod
  def eos_id(self) -> int:
    """Id after each document."""

  @abc.abstractmethod
  def encode(self, document: bytes) -> np.ndarray:
    """Returns the ids of a document, without bos and eos."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, without bos, eos and padding."""


class ByteTokenizer(Tokenizer):
  """Bytes: ids 0 to 255, then bos, eos and padding."""

  vocab_size = 259
  bos_id = 256
  eos_id = 257
  pad_id = 258

  def encode(self, document: bytes) -> np.ndarray:
    return np.frombuffer(document, np.uint8).astype(np.uint16)

  def decode(self, ids: Iterable[int]) -> str:
    content = bytes(int(i) for i in ids if 0 <= i < 256)
    return content.decode('utf-8', errors='replace')


class SentencePieceTokenizer(Tokenizer):
  """SentencePiece, with a model file or a model trained on the corpus.

  A trained model is cached in `$XDG_CACHE_HOME/pax`, else `~/.cache/pax`, under
  a hash of the corpus and the vocabulary size.

  References:
    https://arxiv.org/abs/1808.06226
  """

  # Id of eos in the models that SentencePiece trains by default.
  EOS_ID: ClassVar[int] = 2

  # A trained model; None trains one on the corpus.
  model_file: str | None = None
  # Vocabulary size to train; ignored with `model_file`.
  num_pieces: int = 4096
  # Maximum number of training lines, sampled evenly from the corpus.
  max_lines: int = 200_000

  def __post_init__(self):
    super().__post_init__()
    self._processor: Any = None
    if self.model_file is not None:
      self._load(self.model_file)

  def fit(self, documents: Sequence[bytes]) -> None:
    if self._processor is not None:
      return
    path = os.path.join(_cache_dir(), f'{self._fingerprint(documents)}.model')
    if not os.path.exists(path):
      with atomic_file.open_atomic(path) as file:
        file.write(self._train(documents))
    self._load(path)

  @property
  def vocab_size(self) -> int:
    return self._fitted().get_piece_size()

  @property
  def bos_id(self) -> int:
    return self._fitted().bos_id()

  @property
  def eos_id(self) -> int:
    return self._fitted().eos_id()

  def encode(self, document: bytes) -> np.ndarray:
    text = document.decode('utf-8', errors='replace')
    return np.array(self._fitted().encode(text), np.int32)

  def decode(self, ids: Iterable[int]) -> str:
    size = self.vocab_size
    return self._fitted().decode([int(i) for i in ids if 0 <= i < size])

  def _fitted(self) -> Any:
    if self._processor is None:
      raise ValueError(
        'SentencePieceTokenizer has no model yet; set model_file, or call '
        'fit(documents) first'
      )
    return self._processor

  def _load(self, path: str) -> None:
    import sentencepiece  # Slow to import.

    if not os.path.isfile(path):
      raise ValueError(
        f'model_file must be a SentencePiece model, got {path!r}, which does '
        'not exist; leave model_file None to train one'
      )
    self._processor = sentencepiece.SentencePieceProcessor(model_file=path)

  def _fingerprint(self, documents: Sequence[bytes]) -> str:
    digest = hashlib.sha256(f'{self.num_pieces},{self.max_lines}'.encode())
    for document in documents:
      digest.update(hashlib.sha256(document).digest())
    return f'sentencepiece_{self.num_pieces}_{digest.hexdigest()[:16]}'

  def _train(self, documents: Sequence[bytes]) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    lines = [
      line
      for document in documents
      for line in document.decode('utf-8', 'replace').split('\n')
      if line
    ]
    # The sampling of SentencePiece differs between hosts.
    step = max(1, -(-len(lines) // self.max_lines))
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(lines[::step]),
      model_writer=model,
      vocab_size=self.num_pieces,
      model_type='bpe',
      byte_fallback=True,
      character_coverage=0.9995,
      # Decoding must invert encoding: no normalization, all white space.
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      add_dummy_prefix=False,
      allow_whitespace_only_pieces=True,
      user_defined_symbols=['\n'],
      shuffle_input_sentence=False,
      minloglevel=2,
    )
    return model.getvalue()


def _cache_dir() -> str:
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(base, 'pax')
