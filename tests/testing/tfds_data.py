# SPDX-License-Identifier: Apache-2.0
"""Data sets of TFDS with the features of the real ones, and a vocabulary.

The files are written without TensorFlow; `tensorflow_datasets` reads them.
"""

from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from pax.files import tf_records

# Splits of C4 that the experiments read.
C4_TRAIN, C4_EVAL = 'train2', 'validation_tokenized_5662seqs'
_FEATURES = 'tensorflow_datasets.core.features'
_WORDS = 'the cat sat on a mat and saw two dogs run over green hills'.split()


def sentences(count: int, seed: int = 0) -> list[str]:
  """Returns texts of 4 to 30 words."""
  random = np.random.default_rng(seed)
  return [
    ' '.join(random.choice(_WORDS, random.integers(4, 30))) + '.'
    for _ in range(count)
  ]


def vocabulary(path: pathlib.Path, vocab_size: int = 100) -> str:
  """Trains a SentencePiece model with pad 0, EOS 1, unknown 2, no BOS."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([*sentences(200), 'yes no question answer:?']),
    model_writer=model,
    vocab_size=vocab_size,
    hard_vocab_limit=False,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )
  path.write_bytes(model.getvalue())
  return str(path)


def write(folder: pathlib.Path, seq_len: int, max_id: int) -> str:
  """Writes all data sets; returns the path of their vocabulary.

  Args:
    folder: The folder of TFDS.
    seq_len: Length of the tokenized rows of C4.
    max_id: Their largest token id.
  """
  write_pile(folder)
  write_lambada(folder)
  write_boolq(folder)
  write_c4(folder, seq_len, max_id)
  return vocabulary(folder / 'words.model')


def write_pile(folder: pathlib.Path) -> None:
  """Writes the_pile/lm 1.0.0."""
  splits = {'train': 60, 'validation': 7}
  _write(
    folder,
    'the_pile',
    'lm',
    '1.0.0',
    {
      split: {'text': sentences(count, seed)}
      for seed, (split, count) in enumerate(splits.items())
    },
  )


def write_lambada(folder: pathlib.Path, count: int = 7) -> None:
  """Writes my_lambada/lm 1.0.0; the last word of a text is its target."""
  pairs = [text.rpartition(' ') for text in sentences(count, seed=3)]
  _write(
    folder,
    'my_lambada',
    'lm',
    '1.0.0',
    {
      'test': {
        'inputs': [inputs for inputs, _, _ in pairs],
        'targets': [f' {word}' for _, _, word in pairs],
      }
    },
  )


def write_boolq(folder: pathlib.Path) -> None:
  """Writes super_glue/boolq 1.0.2."""
  splits = {'train': 40, 'validation': 9}
  _write(
    folder,
    'super_glue',
    'boolq',
    '1.0.2',
    {
      split: {
        'idx': np.arange(count, dtype=np.int32),
        'label': np.arange(count, dtype=np.int64) % 2,
        'passage': sentences(count, seed),
        'question': sentences(count, seed + 9),
      }
      for seed, (split, count) in enumerate(splits.items())
    },
    classes=('False', 'True'),
  )


def write_c4(folder: pathlib.Path, seq_len: int, max_id: int) -> None:
  """Writes c4/en 3.0.4, text, and 3.0.5, rows of tokens.

  Args:
    folder: The folder of TFDS.
    seq_len: Length of the rows.
    max_id: The largest token id.
  """
  texts = sentences(60)
  empty = [''] * len(texts)
  metadata = ('content-length', 'content-type', 'timestamp', 'url')
  _write(
    folder,
    'c4',
    'en',
    '3.0.4',
    {C4_TRAIN: {'text': texts, **dict.fromkeys(metadata, empty)}},
  )
  random = np.random.default_rng(5)
  ids = random.integers(3, max_id, size=(10, seq_len), dtype=np.int32)
  _write(folder, 'c4', 'en', '3.0.5', {C4_EVAL: {'ids': ids}})


def _write(
  folder: pathlib.Path,
  name: str,
  config: str,
  version: str,
  splits: dict[str, dict[str, Any]],
  classes: Sequence[str] = (),
) -> None:
  """Writes a data set of one file per split.

  Args:
    folder: The folder of TFDS.
    name: Name of the data set.
    config: Its configuration.
    version: Its version.
    splits: The values of each feature, by split.
    classes: Names of the classes of the feature `label`.
  """
  directory = folder / name / config / version
  directory.mkdir(parents=True)
  features = {
    feature: _feature(feature, values, classes)
    for feature, values in next(iter(splits.values())).items()
  }
  if classes:
    (directory / 'label.labels.txt').write_text('\n'.join(classes))
  infos = []
  for split, columns in splits.items():
    names, rows = list(columns), list(zip(*columns.values(), strict=True))
    path = directory / f'{name}-{split}.tfrecord-00000-of-00001'
    with path.open('wb') as file:
      tf_records.write(file, (_example(names, row) for row in rows))
    infos.append(
      {
        'name': split,
        'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
        'numBytes': str(path.stat().st_size),
        'shardLengths': [str(len(rows))],
      }
    )
  info = {
    'name': name,
    'configName': config,
    'version': version,
    'fileFormat': 'tfrecord',
    'splits': infos,
  }
  (directory / 'dataset_info.json').write_text(json.dumps(info))
  content = {
    'pythonClassName': f'{_FEATURES}.features_dict.FeaturesDict',
    'featuresDict': {'features': features},
  }
  (directory / 'features.json').write_text(json.dumps(content))


def _example(names: Sequence[str], row: Sequence[Any]) -> bytes:
  values = [
    np.array([value.encode()], object)
    if isinstance(value, str)
    else np.atleast_1d(value).astype(np.int64)
    for value in row
  ]
  return tf_records.example(dict(zip(names, values, strict=True)))


def _feature(name: str, values: Any, classes: Sequence[str]) -> dict[str, Any]:
  """Returns the description of a feature in features.json."""
  if isinstance(values, list):
    return {'pythonClassName': f'{_FEATURES}.text_feature.Text', 'text': {}}
  if classes and name == 'label':
    return {
      'pythonClassName': f'{_FEATURES}.class_label_feature.ClassLabel',
      'classLabel': {'numClasses': str(len(classes))},
    }
  is_scalar = values.ndim == 1
  return {
    'pythonClassName': f'{_FEATURES}.'
    + ('scalar.Scalar' if is_scalar else 'tensor_feature.Tensor'),
    'tensor': {
      'shape': {} if is_scalar else {'dimensions': ['-1']},
      'dtype': str(values.dtype),
      'encoding': 'none',
    },
  }
