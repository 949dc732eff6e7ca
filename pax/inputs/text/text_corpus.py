# SPDX-License-Identifier: Apache-2.0
"""Inputs of text files, with a tokenizer and a held-out part."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pax.inputs.records import file_fingerprints, text_files
from pax.inputs.rows import indexed
from pax.inputs.tokens import tokenizers
from praxis import base_input, pax_fiddle, pytypes
from praxis.base_input import data_fingerprints


class TextCorpusInput(indexed.IndexedInput, abc.ABC):
  """Base of inputs that read one side of the split of text files."""

  # Paths, globs or directories, in a sequence or separated by commas; None is
  # the source files of the Python standard library.
  files: str | Sequence[str] | None = None
  # Maps text to ids.
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )
  # Percentage of documents held out from training, and whether to read them.
  held_out_percent: float = 2.0
  held_out: bool = False

  def __post_init__(self):
    super().__post_init__()
    # The files, sorted.
    self.paths = text_files.expand(self.files)

  @property
  @abc.abstractmethod
  def row_settings(self) -> Mapping[str, Any]:
    """Values of the fields that determine how text becomes rows."""

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    return tokenizers.decode_rows(self.fitted_tokenizer, ids, lengths)

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    """Returns the vocabulary of `tokens`; a tokenizer that learns is fitted."""
    return tokenizers.vocabularies(self.fitted_tokenizer)

  def vocabulary_sizes(self) -> Mapping[str, int]:
    return {'tokens': self.fitted_tokenizer.vocab_size}

  @property
  def fitted_tokenizer(self) -> tokenizers.Tokenizer:
    """The tokenizer, fitted if the input does so."""
    return self.tokenizer

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    return self._fingerprint

  @functools.cached_property
  def _fingerprint(self) -> data_fingerprints.Fingerprint:
    return {
      'files': file_fingerprints.describe(self.paths),
      'tokenizer': [v.digest for v in self.vocabularies().values()],
      'seed': self.seed,
      'held_out_percent': self.held_out_percent,
      **self.row_settings,
    }

  def empty_error(self) -> ValueError:
    """Returns the error of a side of the split without examples."""
    part = 'held-out' if self.held_out else 'training'
    first, *others = self.paths
    files = f'{first} and {len(others)} other files' if others else first
    hint = ', or set EVAL_ON_TEST=False' if self.held_out else ''
    return ValueError(
      f'input {self.name!r} must have {part} text, got none in {files} at'
      f' held_out_percent={self.held_out_percent}; add text, change'
      f' HELD_OUT_PERCENT{hint}'
    )
