# SPDX-License-Identifier: Apache-2.0
"""SeqIO tasks of the Pile, LAMBADA and BoolQ.

TFDS has the data: the_pile/lm and my_lambada/lm, which
`pax.contrib.gpu.scripts_gpu.download_*` prepare, and super_glue/boolq.
Environment variables give paths:

  VOCAB_PATH     SentencePiece model
  TFDS_DATA_DIR  folder of TFDS, or the flag --tfds_data_dir
  PILE_DIR       folder with train/*.jsonl and val.jsonl, one text per line,
                 which are read instead of TFDS
  LAMBADA_PATH   lambada_test.jsonl, one text per line, likewise
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pax.inputs.seqio import c4_tasks, tasks

PILE = 'the_pile_lm'
LAMBADA = 'lambada_eval'
BOOLQ = 'boolq'

# Versions of the data sets of TFDS.
_VERSION, _BOOLQ_VERSION = '1.0.0', '1.0.2'
_SHUFFLE_BUFFER_SIZE = 100000
# Number of texts concatenated before the text is split into rows.
_DOCUMENTS = 128
Preprocessor = Callable[[Any], Any]
_QUOTES = str.maketrans('“”‘’', '""\'\'')


@tasks.provides_task(PILE, f'{PILE}_{_VERSION}')
def pile_fields(seqio: Any, sentencepiece_model: str | None) -> dict[str, Any]:
  """Returns the fields of the Pile: concatenated texts in rows that end in EOS.

  Args:
    seqio: The module.
    sentencepiece_model: Path of the vocabulary; None is VOCAB_PATH.
  """
  folder = os.environ.get('PILE_DIR')
  files = None
  if folder:
    files = {
      'train': os.path.join(folder, 'train', '*.jsonl'),
      'validation': os.path.join(folder, 'val.jsonl'),
    }
  features = _features(seqio, sentencepiece_model, ('targets',), add_eos=True)
  return {
    'source': _source(seqio, f'the_pile/lm:{_VERSION}', files),
    'preprocessors': [
      _parser(lambda text: {'targets': text})
      if files
      else c4_tasks.only('text'),
      seqio.preprocessors.tokenize,
      lambda dataset: c4_tasks.join(dataset, _DOCUMENTS),
      c4_tasks.cut,
      seqio.preprocessors.append_eos_after_trim,
    ],
    'output_features': features,
    'metric_fns': [],
    'shuffle_buffer_size': _SHUFFLE_BUFFER_SIZE,
  }


@tasks.provides_task(LAMBADA, f'{LAMBADA}_{_VERSION}')
def lambada_fields(
  seqio: Any, sentencepiece_model: str | None
) -> dict[str, Any]:
  """Returns the fields of LAMBADA; the last word of a passage is the target.

  Args:
    seqio: The module.
    sentencepiece_model: Path of the vocabulary; None is VOCAB_PATH.
  """
  path = os.environ.get('LAMBADA_PATH')
  files = {'test': path} if path else None
  names = ('inputs', 'targets')
  return {
    'source': _source(seqio, f'my_lambada/lm:{_VERSION}', files),
    'preprocessors': [
      *([_parser(last_word)] if files else []),
      seqio.preprocessors.tokenize,
    ],
    'output_features': _features(
      seqio, sentencepiece_model, names, add_eos=True
    ),
    'metric_fns': [],
    'shuffle_buffer_size': None,
  }


@tasks.provides_task(BOOLQ, f'{BOOLQ}_{_BOOLQ_VERSION}')
def boolq_fields(seqio: Any, sentencepiece_model: str | None) -> dict[str, Any]:
  """Returns the fields of BoolQ; the answer to a question is the target.

  Args:
    seqio: The module.
    sentencepiece_model: Path of the vocabulary; None is VOCAB_PATH.
  """
  names = ('inputs', 'targets')
  return {
    'source': _source(seqio, f'super_glue/boolq:{_BOOLQ_VERSION}'),
    'preprocessors': [
      concatenate_passage_and_question,
      seqio.preprocessors.tokenize,
    ],
    'output_features': _features(
      seqio, sentencepiece_model, names, add_eos=False
    ),
    'metric_fns': [],
    'shuffle_buffer_size': _SHUFFLE_BUFFER_SIZE,
  }


def concatenate_passage_and_question(dataset: Any) -> Any:
  """Returns a dataset of prompts that end in 'answer:', and yes or no."""
  where = importlib.import_module('tensorflow').where
  return dataset.map(
    lambda x: {
      'inputs': x['passage'] + '\nquestion: ' + x['question'] + '?\nanswer:',
      'targets': where(x['label'] > 0, 'yes', 'no'),
    }
  )


def last_word(text: str) -> dict[str, str]:
  """Splits a passage into its last word as targets and the rest as inputs.

  Quotation marks become ASCII, as in the evaluation of GPT-2.
  """
  text = text.translate(_QUOTES).rstrip()
  context, _, word = text.rpartition(' ')
  return {'inputs': context.strip(), 'targets': f' {word}'}


def from_environment(name: str) -> str:
  """Returns the value of an environment variable.

  Raises:
    ValueError: the variable is not set.
  """
  value = os.environ.get(name)
  if not value:
    raise ValueError(
      f'the environment variable {name} must be a path, got {value!r}; export '
      f'{name}=PATH'
    )
  return value


def _features(
  seqio: Any, model: str | None, names: Sequence[str], *, add_eos: bool
) -> dict[str, Any]:
  vocabulary = tasks.sentencepiece_vocabulary(
    seqio, model or from_environment('VOCAB_PATH')
  )
  return {
    # Texts may have no inputs.
    name: seqio.Feature(
      vocabulary=vocabulary, add_eos=add_eos, required=name == 'targets'
    )
    for name in names
  }


def _source(
  seqio: Any, tfds_name: str, files: Mapping[str, str] | None = None
) -> Any:
  """Returns the source of the files of each split; None is TFDS."""
  if files:
    return seqio.TextLineDataSource(files)
  return seqio.TfdsDataSource(tfds_name=tfds_name)


def _parser(features_of: Callable[[str], dict[str, str]]) -> Preprocessor:
  """Returns a preprocessor of JSON lines to the features of their text."""
  return lambda lines: _map_lines(lines, features_of)


def _map_lines(lines: Any, features_of: Callable[[str], dict[str, str]]) -> Any:
  """Returns a dataset of the features of the text of each JSON line."""
  tf = importlib.import_module('tensorflow')
  names = sorted(features_of('a b'))

  def parse(line: bytes) -> list[str]:
    features = features_of(json.loads(line)['text'])
    return [features[name] for name in names]

  def example(line: Any) -> dict[str, Any]:
    values = tf.numpy_function(parse, [line], [tf.string] * len(names))
    return {
      name: tf.ensure_shape(value, [])
      for name, value in zip(names, values, strict=True)
    }

  return lines.map(example)
