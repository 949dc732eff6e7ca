# SPDX-License-Identifier: Apache-2.0
"""The Pile, LAMBADA and BoolQ as tasks of SeqIO.

The environment says where they are:

  VOCAB_PATH    a model of SentencePiece
  PILE_DIR      folder with train/*.jsonl and val.jsonl, a text in each line
  LAMBADA_PATH  lambada_test.jsonl, a text in each line

BoolQ is what TFDS calls super_glue/boolq.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from pax.inputs import c4_tasks, seqio_tasks

PILE = 'the_pile_lm'
LAMBADA = 'lambada_eval'
BOOLQ = 'boolq'

_SHUFFLED = 100000
# How many texts are one before it is cut into rows.
_DOCUMENTS = 128
_QUOTES = str.maketrans('“”‘’', '""\'\'')


@seqio_tasks.provides(PILE)
def add_pile(seqio: Any) -> None:
  """Adds the Pile: texts end to end, in rows that end with EOS."""
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
    shuffle_buffer_size=_SHUFFLED,
  )


@seqio_tasks.provides(LAMBADA)
def add_lambada(seqio: Any) -> None:
  """Adds LAMBADA's test set: passages, and their last words as targets."""
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
  """Adds BoolQ: a passage and a question, and yes or no as targets."""
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
    shuffle_buffer_size=_SHUFFLED,
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
  """Returns the targets, a passage's last word, and the inputs before it.

  Quotation marks become those of a typewriter, as GPT-2's evaluation has them.
  """
  text = text.translate(_QUOTES).rstrip()
  before, _, word = text.rpartition(' ')
  return {'inputs': before.strip(), 'targets': f' {word}'}


def from_environment(name: str) -> str:
  """Returns what a variable of the environment says.

  Raises:
    ValueError: it is not set.
  """
  value = os.environ.get(name)
  if not value:
    raise ValueError(
      f'the variable {name} of the environment must say where the data are, '
      f'got {value!r}; export {name}=PATH'
    )
  return value


def _feature(seqio: Any, *, add_eos: bool) -> Any:
  vocabulary = seqio.SentencePieceVocabulary(from_environment('VOCAB_PATH'))
  return seqio.Feature(vocabulary=vocabulary, add_eos=add_eos)


def _map_lines(lines: Any, make: Any) -> Any:
  """Returns a dataset of what `make` makes of the text of each JSON line."""
  tf = importlib.import_module('tensorflow')
  names = sorted(make('a b'))

  def parse(line: bytes) -> list[str]:
    found = make(json.loads(line)['text'])
    return [found[name] for name in names]

  def example(line: Any) -> dict[str, Any]:
    values = tf.numpy_function(parse, [line], [tf.string] * len(names))
    return {
      name: tf.ensure_shape(value, [])
      for name, value in zip(names, values, strict=True)
    }

  return lines.map(example)
