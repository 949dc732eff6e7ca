# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of Hugging Face, `tokenizer.json`.

They need the package `tokenizers`, which comes with transformers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pax.inputs.tokens import tokenizers
from praxis import base_input, pax_fiddle

_FILE = 'tokenizer.json'


class HuggingFaceTokenizer(tokenizers.Tokenizer):
  """The tokenizer of a folder with tokenizer.json and config.json."""

  folder: str = ''

  @property
  def vocab_size(self) -> int:
    return self._tokenizer.get_vocab_size()

  @property
  def bos_id(self) -> int:
    # Models without one start a document after the end of another.
    bos_id = token_id(self._config, 'bos')
    return self.eos_id if bos_id is None else bos_id

  @property
  def eos_id(self) -> int:
    """Id after each document.

    Raises:
      ValueError: config.json has none.
    """
    eos_id = token_id(self._config, 'eos')
    if eos_id is None:
      raise ValueError(
        f'config.json in {self.folder} must have eos_token_id, got none; add'
        ' that of the tokenizer'
      )
    return eos_id

  def encode(self, document: bytes) -> np.ndarray:
    text = document.decode('utf-8', errors='replace')
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return np.array(encoding.ids, np.int32)

  def encode_all(self, documents: Sequence[bytes]) -> list[np.ndarray]:
    texts = [x.decode('utf-8', errors='replace') for x in documents]
    encodings = self._tokenizer.encode_batch_fast(
      texts, add_special_tokens=False
    )
    return [np.array(encoding.ids, np.int32) for encoding in encodings]

  def encode_prompt(self, text: bytes) -> np.ndarray:
    """Returns the ids with the special tokens of tokenizer.json."""
    encoding = self._tokenizer.encode(text.decode('utf-8', errors='replace'))
    return np.array(encoding.ids, np.int32)

  def decode(self, ids: Iterable[int]) -> str:
    size = self.vocab_size
    return self._tokenizer.decode([int(i) for i in ids if 0 <= i < size])

  def token_id(self, token: str) -> int | None:
    return self._tokenizer.token_to_id(token)

  @property
  def vocabulary(self) -> base_input.Vocabulary:
    file = pathlib.Path(self.folder, _FILE)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return base_input.Vocabulary(f'sha256:{digest}', str(file))

  @functools.cached_property
  def _config(self) -> dict[str, Any]:
    return json.loads(pathlib.Path(self.folder, 'config.json').read_text())

  @functools.cached_property
  def _tokenizer(self) -> Any:
    try:
      import tokenizers as huggingface_tokenizers
    except ImportError as e:
      raise ValueError(
        f'the tokenizer of {self.folder} needs the package tokenizers, which is'
        ' not installed; pip install tokenizers'
      ) from e
    file = str(pathlib.Path(self.folder, _FILE))
    tokenizer = huggingface_tokenizers.Tokenizer.from_file(file)
    # transformers sets them at each call; the file may have those of the last.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def by_name(name: str) -> pax_fiddle.Config[tokenizers.Tokenizer]:
  """Returns the tokenizer that a path or a name selects.

  Args:
    name: 'bytes', a SentencePiece model (*.model), or tokenizer.json of Hugging
      Face, with config.json in its folder.

  Raises:
    ValueError: It is none of these.
  """
  path = pathlib.Path(name).expanduser()
  if name == 'bytes':
    return pax_fiddle.Config(tokenizers.ByteTokenizer)
  if path.suffix == '.model':
    return pax_fiddle.Config(
      tokenizers.SentencePieceTokenizer, model_file=str(path)
    )
  folder = path.parent if path.name == _FILE else path
  files = [folder / _FILE, folder / 'config.json']
  missing = [str(file) for file in files if not file.is_file()]
  if not missing:
    return pax_fiddle.Config(HuggingFaceTokenizer, folder=str(folder))
  if path.name == _FILE or folder.is_dir():
    raise ValueError(
      f'the tokenizer {name!r} must be {_FILE} in a folder with config.json,'
      ' which has eos_token_id; there is no'
      f' {" and no ".join(missing)}'
    )
  raise ValueError(
    f'the tokenizer must be bytes, *.model or a {_FILE} with config.json in its'
    f' folder, got {name!r}'
  )


def is_available() -> bool:
  """Returns whether the package `tokenizers` is installed."""
  return importlib.util.find_spec('tokenizers') is not None


def token_id(config: Mapping[str, Any], name: str) -> int | None:
  """Returns the first id of a special token in config.json, None if none.

  Args:
    config: Contents of config.json.
    name: 'bos' or 'eos'.
  """
  ids = config.get(f'{name}_token_id')
  return ids[0] if isinstance(ids, list) else ids
