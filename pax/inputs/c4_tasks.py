# SPDX-License-Identifier: Apache-2.0
"""C4 for GPT-3 by MLPerf's rules, as tasks of SeqIO.

The data and the pieces of SentencePiece lie in a public bucket of MLPerf.
Nothing of it is read before a task is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pax.inputs import seqio_tasks

GPT_SPM_PATH = 'gs://mlperf-llm-public2/vocab/c4_en_301_5Mexp2_spm.model'
C4_TRAIN_DATADIR = 'gs://mlperf-llm-public2'
C4_EVAL_DATADIR = 'gs://mlperf-llm-public2'
TRAIN_TASK = 'c4_lm_v301_gpt'
EVAL_TASK = 'c4_lm_v301_gpt_eval_tokenized'

_TRAIN_VERSION, _EVAL_VERSION = '3.0.4', '3.0.5'
_VOCABULARY_SIZE = 50257
# How many documents are one text before it is cut into rows.
_DOCUMENTS = 4096


@seqio_tasks.provides(TRAIN_TASK, f'{TRAIN_TASK}_{_TRAIN_VERSION}')
def add_train(seqio: Any) -> None:
  """Adds the training task, by its name and by that of its version."""
  vocabulary = seqio.SentencePieceVocabulary(GPT_SPM_PATH)
  for name in (TRAIN_TASK, f'{TRAIN_TASK}_{_TRAIN_VERSION}'):
    seqio.TaskRegistry.add(
      name,
      source=seqio.TfdsDataSource(
        tfds_name=f'c4/en:{_TRAIN_VERSION}', tfds_data_dir=C4_TRAIN_DATADIR
      ),
      preprocessors=train_preprocessors(seqio),
      output_features=_features(seqio, vocabulary),
      metric_fns=[],
      shuffle_buffer_size=10000,
    )


@seqio_tasks.provides(EVAL_TASK, f'{EVAL_TASK}_{_EVAL_VERSION}')
def add_eval(seqio: Any) -> None:
  """Adds the task of tokenised validation texts, by both its names."""
  vocabulary = seqio.PassThroughVocabulary(size=_VOCABULARY_SIZE)
  for name in (EVAL_TASK, f'{EVAL_TASK}_{_EVAL_VERSION}'):
    seqio.TaskRegistry.add(
      name,
      source=seqio.TfdsDataSource(
        tfds_name=f'c4/en:{_EVAL_VERSION}', tfds_data_dir=C4_EVAL_DATADIR
      ),
      preprocessors=[only('ids'), seqio.preprocessors.tokenize],
      output_features=_features(seqio, vocabulary),
      metric_fns=[],
      shuffle_buffer_size=None,
    )


def train_preprocessors(
  seqio: Any, documents: int = _DOCUMENTS
) -> list[Callable[..., Any]]:
  """Returns what makes rows of text: so many documents joined, then cut."""
  return [
    only('text'),
    seqio.preprocessors.tokenize,
    lambda dataset: join(dataset, documents),
    cut,
  ]


def only(key: str) -> Callable[[Any], Any]:
  """Returns a preprocessor that keeps one feature, as the targets."""
  return lambda dataset: dataset.map(lambda example: {'targets': example[key]})


def join(dataset: Any, documents: int) -> Any:
  """Returns a dataset whose targets are those of so many, end to end."""
  targets = dataset.map(lambda x: x['targets']).ragged_batch(documents)
  return targets.map(lambda x: {'targets': x.values})


def cut(dataset: Any, sequence_length: Mapping[str, int]) -> Any:
  """Returns a dataset whose targets are pieces as long as they may be."""
  length = sequence_length['targets']
  slices = importlib.import_module('tensorflow').data.Dataset.from_tensor_slices
  pieces = lambda x: slices(x['targets']).batch(length)
  return dataset.flat_map(pieces).map(lambda x: {'targets': x})


def _features(seqio: Any, vocabulary: Any) -> dict[str, Any]:
  return {'targets': seqio.Feature(vocabulary=vocabulary, add_eos=False)}
