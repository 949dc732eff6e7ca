# SPDX-License-Identifier: Apache-2.0
"""Batches of language models from files of tokens or of text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from absl import logging

from pax.inputs.records import data_files, file_fingerprints, text_records
from pax.inputs.rows import mixtures, packed_rows, packing, row_input
from pax.inputs.tokens import token_arrays, tokenization, tokenizers
from praxis import (
  base_input,
  pax_fiddle,
  pytypes,
  value_domains,
)
from praxis.base_input import data_fingerprints

# Layouts of tokens in rows, besides the algorithms of packing.
CONTIGUOUS, TRUNCATE = 'contiguous', 'truncate'
LAYOUTS = (*packing.ALGORITHMS, CONTIGUOUS, TRUNCATE)

# Files of data; an index belongs to its tokens.
_SUFFIXES = ('.npy', '.bin', *text_records.SUFFIXES)


class LanguageModelInput(row_input.RowInput):
  """Next-token prediction on one or several data sets.

  The files of an item of `data` form one data set. A mapping has the weights of
  a mixture, as in `{'/data/web.bin': 0.8, '/data/code/*.bin': 0.2}`.
  """

  CHANGE_ADVICE: ClassVar[Mapping[str, str]] = dict.fromkeys(
    ('files', 'weights'), 'set TRAIN_DATA_STAGES to change them from a row on'
  )

  # Paths, globs, folders or names of data sets of Hugging Face (hf://), in a
  # sequence, separated by commas, or with weights.
  data: str | Sequence[str] | Mapping[str, float] = ()
  # Mixtures that replace `data` in training, by the number of rows after which
  # they begin: {40_000_000: {'/data/web.bin': 0.3, '/data/math.bin': 0.7}}. A
  # data set in several of them goes on with its next row.
  data_stages: Mapping[int, Mapping[str, float]] | None = None
  # Length of a row.
  seq_len: int = value_domains.field(1024, ge=1)
  # How documents become rows: packed by best-fit or first-fit, `contiguous` in
  # disregard of their boundaries, or `truncate` to one row each. None is
  # best-fit if the files record where documents start, else contiguous.
  layout: str | None = None
  # Maps text to ids, for files of text and for the text of samples.
  tokenizer_tpl: pax_fiddle.Config[tokenizers.Tokenizer] | None = (
    pax_fiddle.template_field(None)
  )
  # Field with the text; see text_records.open_text.
  text_field: str = 'text'
  # Vocabulary size of the model, to check the ids; None is not checked.
  vocab_size: int | None = None
  # Last id of each document in a contiguous layout, after which another segment
  # starts; None: that of the tokenizer, or none.
  eos_id: int | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.layout not in (None, *LAYOUTS):
      raise ValueError(
        f'layout of {self.name!r} must be one of {list(LAYOUTS)}, got'
        f' {self.layout!r}'
      )
    if not self._weights_by_pattern:
      raise ValueError(f'data of {self.name!r} names no file')
    if self.data_stages is not None:
      self._check_stages(self.data_stages)
    for weights in (self.source_weights or {}).values():
      self._check_weights(weights)

  def _check_weights(self, weights: Sequence[float]) -> None:
    """Checks them in evaluation, too, which has no other use for them."""
    try:
      mixtures.check_weights(weights, len(weights))
    except ValueError as e:
      raise ValueError(f'data of {self.name!r}: {e}') from e
    if not self.is_training and not all(weights):
      raise ValueError(
        f'data of {self.name!r}: weights must be positive in evaluation, which'
        f' reads all rows, got {list(weights)}; leave the data of weight 0 out'
      )

  def _check_stages(self, stages: Mapping[int, Mapping[str, float]]) -> None:
    if not self.is_training:
      raise ValueError(
        f'data_stages of {self.name!r} must be None in evaluation, which reads'
        f' each row once, got {stages!r}; leave them None'
      )
    if len(self._weights_by_pattern) > 1 and not isinstance(self.data, Mapping):
      raise ValueError(
        f'data of {self.name!r} must be a mixture with weights, or one item,'
        f' because data_stages change them, got {self.data!r}; give each item'
        ' its weight'
      )
    for start, weights in stages.items():
      if not isinstance(start, int) or start <= 0:
        raise ValueError(
          f'data_stages of {self.name!r} must begin after a positive number of'
          f' rows, got {start!r}; the first mixture is that of data'
        )
      if not isinstance(weights, Mapping) or not weights:
        raise ValueError(
          f'data_stages of {self.name!r} must be mixtures with weights, got'
          f' {weights!r} from row {start} on; for one data set set'
          " {'FILE': 1.0}"
        )
      logging.info(
        'Input %r reads %s from row %d on, which is in batch %d',
        self.name,
        dict(weights),
        start,
        start // self.get_global_batch_size(self),
      )

  @functools.cached_property
  def sources(self) -> Sequence[row_input.RowSource]:
    """One source for each item of `data` and `data_stages`."""
    return [
      row_input.RowConcatenation([self._rows_of(array) for array in arrays])
      for arrays in self._arrays
    ]

  @property
  def source_weights(self) -> Mapping[int, Sequence[float]] | None:
    if not isinstance(self.data, Mapping) and not self.data_stages:
      return None
    return {
      start: [weights.get(pattern, 0.0) for pattern in self._patterns]
      for start, weights in self._stages.items()
    }

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    if self.tokenizer is None:
      raise NotImplementedError(
        f'tokenizer_tpl of {self.name!r} is not set; it maps ids to text'
      )
    return tokenizers.decode_rows(self.tokenizer, ids, lengths)

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    """Returns the vocabulary of the tokens.

    Raises:
      ValueError: Files were made with different tokenizers.
    """
    vocabularies = {
      array.vocabulary.digest: array.vocabulary
      for array in sum(self._arrays, [])
      if array.vocabulary is not None
    }
    if self.tokenizer is not None and self.tokenizer.vocabulary is not None:
      vocabularies.setdefault(
        self.tokenizer.vocabulary.digest, self.tokenizer.vocabulary
      )
    if len(vocabularies) > 1:
      raise ValueError(
        f'the data of {self.name!r} must have one tokenizer, got'
        f' {[v.source for v in vocabularies.values()]}; prepare all files with'
        ' the same one'
      )
    return dict(zip(['tokens'], vocabularies.values(), strict=False))

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    return self._fingerprint(len(self._stages))

  def data_fingerprint_before(
    self, state: base_input.State
  ) -> data_fingerprints.Fingerprint:
    num_rows = state['examples']
    return self._fingerprint(
      max(1, sum(start < num_rows for start in self._stages))
    )

  @functools.lru_cache(maxsize=2)  # noqa: B019  An input lives with its job.
  def _fingerprint(self, num_stages: int) -> data_fingerprints.Fingerprint:
    """Returns the properties of the data of the first stages."""
    count = self._num_data_sets(num_stages)
    vocabularies = self.vocabularies().values()
    return {
      'files': self._file_fingerprints[:count],
      'tokens': [
        sum(len(a.tokens) for a in group) for group in self._arrays[:count]
      ],
      'tokenizer': [v.digest for v in vocabularies],
      'weights': self._weights_fingerprint(num_stages),
      'text_field': self.text_field,
      'layout': self.layout,
      'seq_len': self.seq_len,
      'eos_id': self.eos_id,
      'seed': self.seed,
    }

  def _weights_fingerprint(self, num_stages: int) -> Sequence[Any] | None:
    weights_by_row = self.source_weights
    is_plain = num_stages == 1 and not isinstance(self.data, Mapping)
    if weights_by_row is None or is_plain:
      return None
    count = self._num_data_sets(num_stages)
    if num_stages == 1:
      return weights_by_row[0][:count]
    stages = [[row, weights[:count]] for row, weights in weights_by_row.items()]
    return stages[:num_stages]

  @functools.cached_property
  def _file_fingerprints(self) -> list[str]:
    return [file_fingerprints.describe(paths) for paths in self._paths]

  @functools.cached_property
  def _stages(self) -> Mapping[int, Mapping[str, float]]:
    """The weights of patterns by the row from which they hold."""
    stages = {0: self._weights_by_pattern, **(self.data_stages or {})}
    return dict(sorted(stages.items()))

  @functools.cached_property
  def _patterns(self) -> list[str]:
    """The patterns of all stages in the order in which stages begin."""
    return list(dict.fromkeys(itertools.chain(*self._stages.values())))

  def _num_data_sets(self, num_stages: int) -> int:
    """Returns the number of patterns of the first stages."""
    stages = list(self._stages.values())[:num_stages]
    return len({*itertools.chain(*stages)})

  @functools.cached_property
  def _weights_by_pattern(self) -> Mapping[str, float]:
    if isinstance(self.data, Mapping):
      return self.data
    if isinstance(self.data, str):
      patterns = [p for p in self.data.split(',') if p]
    else:
      patterns = list(self.data)
    return dict.fromkeys(patterns, 1.0)

  @functools.cached_property
  def _arrays(self) -> list[list[token_arrays.TokenArray]]:
    """The token arrays of each item of `data` and `data_stages`."""
    groups = [self._open(paths) for paths in self._paths]
    for paths, arrays in zip(self._paths, groups, strict=True):
      if not any(len(array.tokens) for array in arrays):
        raise ValueError(
          f'{paths} have no tokens; write them again, or remove them from the'
          f' data of {self.name!r}'
        )
    return groups

  @functools.cached_property
  def _paths(self) -> list[list[str]]:
    """The files of each item of `data` and `data_stages`."""
    return [data_files.expand(pattern, _SUFFIXES) for pattern in self._patterns]

  def _open(self, paths: Sequence[str]) -> list[token_arrays.TokenArray]:
    """Opens files; those of text are tokenized into the cache."""
    texts = [p for p in paths if not p.endswith(token_arrays.SUFFIXES)]
    paths = [p for p in paths if p.endswith(token_arrays.SUFFIXES)]
    if texts:
      if self.tokenizer_tpl is None:
        raise ValueError(
          f'{texts[0]} is a file of text and needs a tokenizer; set TOKENIZER'
          ' to a *.model, a tokenizer.json, or bytes'
        )
      if self.tokenizer is not None and self.tokenizer.is_fitted:
        self._check_vocab_size(texts[0], self.tokenizer.vocab_size)
      job = tokenization.TokenizationJob(
        paths=texts,
        tokenizer=self.tokenizer_tpl,
        field=self.text_field,
        max_corrupt_records=self.max_corrupt_records,
      )
      paths.append(tokenization.tokenize_cached(job))
    return [token_arrays.open_array(path) for path in paths]

  @functools.cached_property
  def tokenizer(self) -> tokenizers.Tokenizer | None:
    """The tokenizer."""
    if self.tokenizer_tpl is None:
      return None
    return self.tokenizer_tpl.Instantiate()

  def _check_vocab_size(self, path: str, num_pieces: int) -> None:
    if self.vocab_size is not None and num_pieces > self.vocab_size:
      raise ValueError(
        f'{path} has the ids of a tokenizer of {num_pieces} pieces, but the'
        f' vocabulary of the model has {self.vocab_size}; set'
        f' VOCAB_SIZE={num_pieces}, or use another tokenizer'
      )

  def _rows_of(self, array: token_arrays.TokenArray) -> row_input.RowSource:
    layout = self.layout
    if layout is None:
      layout = CONTIGUOUS if array.starts is None else packing.BEST_FIT
    self._check_vocab_size(array.path, array.vocab_size or 0)
    if layout == CONTIGUOUS:
      return packed_rows.ContiguousRows(
        array.tokens,
        self.seq_len,
        eos_id=self.eos_id if self.eos_id is not None else array.eos_id,
        name=array.path,
        vocab_size=self.vocab_size,
      )
    corpus = array.corpus
    if layout == TRUNCATE:
      plan = packing.one_per_row(corpus.lengths, self.seq_len)
    else:
      plan = packing.plan(corpus.lengths, self.seq_len, layout)
    return packed_rows.PackedRows(
      corpus, plan, name=array.path, vocab_size=self.vocab_size
    )
