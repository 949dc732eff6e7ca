# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: bytes, and SentencePiece."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import io
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

from pax.files import atomic_file
from pax.inputs.tokens import cache
from praxis import base_hyperparams, base_input


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

  def encode_all(self, documents: Sequence[bytes]) -> list[np.ndarray]:
    """Returns the ids of each document; override it to use several cores."""
    return [self.encode(document) for document in documents]

  def encode_prompt(self, text: bytes) -> np.ndarray:
    """Returns the ids of a text to continue, by default after bos."""
    return np.concatenate([[self.bos_id], self.encode(text)]).astype(np.int32)

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, without bos, eos and padding."""

  def token_id(self, token: str) -> int | None:
    """Returns the id of a special token; None if there is none."""
    return None

  @property
  def is_fitted(self) -> bool:
    """Whether `fit` has nothing to do."""
    return True

  @property
  def vocabulary(self) -> base_input.Vocabulary | None:
    """The mapping, after `fit`; None is not compared between jobs."""
    return None


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

  @property
  def vocabulary(self) -> base_input.Vocabulary:
    return base_input.Vocabulary('bytes', type(self).__name__)


class SentencePieceTokenizer(Tokenizer):
  """SentencePiece, with a model file or a model trained on the corpus.

  A trained model is cached in `$XDG_CACHE_HOME/pax`, else `~/.cache/pax`. The
  name of the file has a hash of the corpus and of the settings, and the SHA-256
  of the model: a damaged file is trained again.

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
    self._vocabulary: base_input.Vocabulary | None = None
    if self.model_file is not None:
      self._read_model_file(self.model_file)

  @property
  def is_fitted(self) -> bool:
    return self._processor is not None

  @property
  def vocabulary(self) -> base_input.Vocabulary | None:
    return self._vocabulary

  def fit(self, documents: Sequence[bytes]) -> None:
    if self.is_fitted:
      return
    models = _ModelCache(self._fingerprint(documents))
    model = models.read()
    if model is None:
      # One process trains; the others wait for its model.
      with cache.lock(models.lock_path):
        model = models.read()
        if model is None:
          models.delete_damaged()
          model = self._train(documents)
          models.write(model)
    self._load(model, str(models.path_of(model)))

  @property
  def vocab_size(self) -> int:
    return self._fitted().get_piece_size()

  @property
  def bos_id(self) -> int:
    # Models without one start a document after the end of another.
    bos_id = self._fitted().bos_id()
    return self.eos_id if bos_id < 0 else bos_id

  @property
  def eos_id(self) -> int:
    """Id after each document.

    Raises:
      ValueError: The model has none.
    """
    eos_id = self._fitted().eos_id()
    if eos_id < 0:
      raise ValueError(
        f'model_file must be a SentencePiece model with eos, got'
        f' {self.model_file!r} without one; train it with eos_id'
      )
    return eos_id

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

  def _read_model_file(self, path: str) -> None:
    if not os.path.isfile(path):
      raise ValueError(
        f'model_file must be a SentencePiece model, got {path!r}, which does '
        'not exist; leave model_file None to train one'
      )
    try:
      self._load(pathlib.Path(path).read_bytes(), path)
    except RuntimeError as e:
      raise ValueError(
        f'model_file must be a SentencePiece model, got {path!r}, which is'
        f' damaged or another file: {e}'
      ) from e

  def _load(self, model: bytes, path: str) -> None:
    import sentencepiece  # Slow to import.

    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    self._vocabulary = base_input.Vocabulary(f'sha256:{_sha256(model)}', path)

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
    try:
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
    except RuntimeError as e:
      raise ValueError(
        f'SentencePiece cannot train num_pieces={self.num_pieces} on'
        f' {len(lines)} lines; choose another number of pieces ({e})'
      ) from e
    return model.getvalue()


def decode_rows(
  tokenizer: Tokenizer, ids: np.ndarray, lengths: np.ndarray
) -> list[str]:
  """Returns the text of the first `lengths` ids of each row.

  Args:
    tokenizer: The tokenizer, fitted.
    ids: The ids [B, T].
    lengths: Their numbers [B].
  """
  pairs = zip(np.asarray(ids), np.asarray(lengths), strict=True)
  return [tokenizer.decode(row[:length]) for row, length in pairs]


def vocabularies(tokenizer: Tokenizer) -> dict[str, base_input.Vocabulary]:
  """Returns the vocabulary of a fitted tokenizer as that of `tokens`."""
  vocabulary = tokenizer.vocabulary
  return {} if vocabulary is None else {'tokens': vocabulary}


class _ModelCache:
  """Trained models of one corpus: `<fingerprint>.<sha256>.model`.

  The checksum is in the name, so that model and checksum appear together.
  """

  def __init__(self, fingerprint: str):
    self._folder = cache.folder()
    self._fingerprint = fingerprint

  @property
  def lock_path(self) -> pathlib.Path:
    """File that excludes other processes."""
    return self._folder / f'{self._fingerprint}.lock'

  def path_of(self, model: bytes) -> pathlib.Path:
    """Returns the path of a model."""
    return self._folder / f'{self._fingerprint}.{_sha256(model)}.model'

  def read(self) -> bytes | None:
    """Returns the model; None if there is none, or only damaged ones."""
    for path in self._paths():
      with contextlib.suppress(OSError):
        model = path.read_bytes()
        if path == self.path_of(model):
          return model
    return None

  def delete_damaged(self) -> None:
    """Deletes the files of a cache without a valid model, with warnings."""
    for path in self._paths():
      logging.warning(
        'The cached tokenizer %s is damaged; it is trained again', path
      )
      with contextlib.suppress(OSError):
        path.unlink()

  def write(self, model: bytes) -> None:
    """Writes the model, if the cache can be written."""
    try:
      atomic_file.make_folder(self._folder, parents=True)
      with atomic_file.open_atomic(self.path_of(model)) as file:
        file.write(model)
    except OSError as e:
      logging.warning('The trained tokenizer is not cached: %s', e)

  def _paths(self) -> list[pathlib.Path]:
    return sorted(self._folder.glob(f'{self._fingerprint}.*.model'))


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
