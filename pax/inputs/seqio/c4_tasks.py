# SPDX-License-Identifier: Apache-2.0
"""SeqIO tasks of C4 for GPT-3, as defined by MLPerf.

Data and SentencePiece model are in a public bucket of MLPerf; they are read
only when a task is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pax.inputs.seqio import tasks

GPT_SPM_PATH = 'gs://mlperf-llm-public2/vocab/c4_en_301_5Mexp2_spm.model'
C4_TRAIN_DATADIR = 'gs://mlperf-llm-public2'
C4_EVAL_DATADIR = 'gs://mlperf-llm-public2'
TRAIN_TASK = 'c4_lm_v301_gpt'
EVAL_TASK = 'c4_lm_v301_gpt_eval_tokenized'

_TRAIN_VERSION, _EVAL_VERSION = '3.0.4', '3.0.5'
VOCABULARY_SIZE = 50257
# Number of documents concatenated before the text is split into rows.
_DOCUMENTS = 4096


@tasks.provides_task(TRAIN_TASK, f'{TRAIN_TASK}_{_TRAIN_VERSION}')
def train_fields(seqio: Any, sentencepiece_model: str | None) -> dict[str, Any]:
  """Returns the fields of the training task."""
  vocabulary = tasks.sentencepiece_vocabulary(
    seqio, sentencepiece_model or GPT_SPM_PATH
  )
  return {
    'source': seqio.TfdsDataSource(
      tfds_name=f'c4/en:{_TRAIN_VERSION}', tfds_data_dir=C4_TRAIN_DATADIR
    ),
    'preprocessors': train_preprocessors(seqio),
    'output_features': _features(seqio, vocabulary),
    'metric_fns': [],
    'shuffle_buffer_size': 10000,
  }


@tasks.provides_task(EVAL_TASK, f'{EVAL_TASK}_{_EVAL_VERSION}')
def eval_fields(seqio: Any, sentencepiece_model: str | None) -> dict[str, Any]:
  """Returns the fields of the validation task, whose data are token ids."""
  del sentencepiece_model
  vocabulary = seqio.PassThroughVocabulary(size=VOCABULARY_SIZE)
  return {
    'source': seqio.TfdsDataSource(
      tfds_name=f'c4/en:{_EVAL_VERSION}', tfds_data_dir=C4_EVAL_DATADIR
    ),
    'preprocessors': [only('ids'), seqio.preprocessors.tokenize],
    'output_features': _features(seqio, vocabulary),
    'metric_fns': [],
    'shuffle_buffer_size': None,
  }


def train_preprocessors(
  seqio: Any, documents: int = _DOCUMENTS
) -> list[Callable[..., Any]]:
  """Returns the preprocessors: tokenize, join documents, split into rows."""
  return [
    only('text'),
    seqio.preprocessors.tokenize,
    lambda dataset: join(dataset, documents),
    cut,
  ]


def only(key: str) -> Callable[[Any], Any]:
  """Returns a preprocessor that keeps one feature as the targets."""
  return lambda dataset: dataset.map(lambda example: {'targets': example[key]})


def join(dataset: Any, documents: int) -> Any:
  """Returns a dataset with the targets of every `documents` concatenated.

  Tokens with id 0, the padding, are left out, as T5 does.
  """
  targets = dataset.map(lambda x: x['targets']).ragged_batch(documents)
  return targets.map(lambda x: {'targets': x.values[x.values != 0]})


def cut(dataset: Any, sequence_length: Mapping[str, int]) -> Any:
  """Returns a dataset with targets split into pieces of maximum length."""
  length = sequence_length['targets']
  slices = importlib.import_module('tensorflow').data.Dataset.from_tensor_slices
  pieces = lambda x: slices(x['targets']).batch(length)
  return dataset.flat_map(pieces).map(lambda x: {'targets': x})


def _features(seqio: Any, vocabulary: Any) -> dict[str, Any]:
  return {'targets': seqio.Feature(vocabulary=vocabulary, add_eos=False)}
