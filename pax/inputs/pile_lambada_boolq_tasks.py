# SPDX-License-Identifier: Apache-2.0
"""SeqIO tasks of the Pile, LAMBADA and BoolQ.

Environment variables give the paths:

  VOCAB_PATH    SentencePiece model
  PILE_DIR      directory with train/*.jsonl and val.jsonl, one text per line
  LAMBADA_PATH  lambada_test.jsonl, one text per line

BoolQ is super_glue/boolq of TFDS.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from typing import Any

from pax.inputs import c4_tasks, seqio_tasks

PILE = 'the_pile_lm'
LAMBADA = 'lambada_eval'
BOOLQ = 'boolq'

_SHUFFLE_BUFFER_SIZE = 100000
# Number of texts concatenated before the text is split into rows.
_DOCUMENTS = 128
_QUOTES = str.maketrans('“”‘’', '""\'\'')


@seqio_tasks.provides(PILE)
def add_pile(seqio: Any) -> None:
  """Adds the Pile: concatenated texts in rows that end with EOS."""
  folder = from_environment('PILE_DIR')
  seqio.TaskRegistry.add(
    PILE,
    source=seqio.TextLineDataSource(
      {
        'train': os.path.join(folder, 'train', '*.jsonl'),
        'validation': os.path.join(folder, 'val.jsonl'),
      }
    ),
    preprocessors=[
      lambda lines: _map_lines(lines, lambda text: {'targets': text}),
      seqio.preprocessors.tokenize,
      lambda dataset: c4_tasks.join(dataset, _DOCUMENTS),
      c4_tasks.cut,
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={'targets': _feature(seqio, add_eos=True)},
    metric_fns=[],
    shuffle_buffer_size=_SHUFFLE_BUFFER_SIZE,
  )


@seqio_tasks.provides(LAMBADA)
def add_lambada(seqio: Any) -> None:
  """Adds the test set of LAMBADA; the last word of a passage is the target."""
  feature = _feature(seqio, add_eos=True)
  seqio.TaskRegistry.add(
    LAMBADA,
    source=seqio.TextLineDataSource({'test': from_environment('LAMBADA_PATH')}),
    preprocessors=[
      lambda lines: _map_lines(lines, last_word),
      seqio.preprocessors.tokenize,
    ],
    output_features={'inputs': feature, 'targets': feature},
    metric_fns=[],
    shuffle_buffer_size=None,
  )


@seqio_tasks.provides(BOOLQ)
def add_boolq(seqio: Any) -> None:
  """Adds BoolQ; the answer to a question on a passage is the target."""
  feature = _feature(seqio, add_eos=False)
  seqio.TaskRegistry.add(
    BOOLQ,
    source=seqio.TfdsDataSource(tfds_name='super_glue/boolq:1.0.2'),
    preprocessors=[
      concatenate_passage_and_question,
      seqio.preprocessors.tokenize,
    ],
    output_features={'inputs': feature, 'targets': feature},
    metric_fns=[],
    shuffle_buffer_size=_SHUFFLE_BUFFER_SIZE,
  )


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


def _feature(seqio: Any, *, add_eos: bool) -> Any:
  vocabulary = seqio.SentencePieceVocabulary(from_environment('VOCAB_PATH'))
  return seqio.Feature(vocabulary=vocabulary, add_eos=add_eos)


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
