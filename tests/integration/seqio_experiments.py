# SPDX-License-Identifier: Apache-2.0
"""Experiments on a SeqIO task over files that the test writes.

DATA_VARIABLE is the environment variable with their directory.
"""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import random
from typing import Any

import jax.numpy as jnp

from pax import experiment_registry
from pax.inputs.seqio import evaluation, lm_features, seqio_input
from pax.inputs.seqio import outputs as seqio_outputs
from pax.inputs.seqio import tasks as seqio_tasks
from pax.tasks.lm import model_params
from praxis import base_input, decoding, pax_fiddle

Config = pax_fiddle.Config
DATA_VARIABLE = 'PAX_TEST_SEQIO_DATA'
TASK = 'questions'
LENGTHS = {'inputs': 16, 'targets': 8}
# Neither a multiple of the batch size nor of the number of hosts.
NUM_EVALUATED = 13
VOCABULARY_SIZE = 64

_WORDS = ('one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight')


def write_data(directory: pathlib.Path) -> None:
  """Writes the splits, TFRecord and JSON, and trains the vocabulary."""
  import sentencepiece
  import tensorflow as tf

  examples = _examples(120)
  with tf.io.TFRecordWriter(str(directory / 'train.tfrecord')) as file:
    for example in examples[NUM_EVALUATED:]:
      features = {
        name: tf.train.Feature(
          bytes_list=tf.train.BytesList(value=[text.encode()])
        )
        for name, text in example.items()
      }
      message = tf.train.Example(features=tf.train.Features(feature=features))
      file.write(message.SerializeToString())
  lines = [json.dumps(example) for example in examples[:NUM_EVALUATED]]
  (directory / 'validation.jsonl').write_text('\n'.join(lines))
  sentencepiece.SentencePieceTrainer.Train(
    sentence_iterator=iter([t for e in examples for t in e.values()]),
    model_prefix=str(directory / 'vocabulary'),
    vocab_size=VOCABULARY_SIZE,
    hard_vocab_limit=False,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )


def _examples(count: int) -> list[dict[str, str]]:
  """Returns questions for the word after some words."""
  source = random.Random(0)
  examples = []
  for _ in range(count):
    words = source.sample(_WORDS, 3)
    examples.append(
      {'inputs': f'after {words[0]} {words[1]} :', 'targets': words[2]}
    )
  return examples


def similarity(targets: list[str], predictions: list[str]) -> dict[str, Any]:
  """The mean similarity of texts, which is not 0 without training."""
  pairs = list(zip(targets, predictions, strict=True))
  ratios = [difflib.SequenceMatcher(None, t, p).ratio() for t, p in pairs]
  return {
    'similarity': sum(ratios) / len(ratios),
    'num_letters': sum(len(p) for p in predictions),
  }


def mean_score(targets: list[Any], scores: Any) -> dict[str, Any]:
  """The mean score, weighted by the lengths of the targets: order counts."""
  lengths = [len(target) for target in targets]
  total = sum(n * float(s) for n, s in zip(lengths, scores, strict=True))
  return {'mean_score': total / sum(lengths)}


@seqio_tasks.provides(TASK)
def add_task(seqio: Any) -> None:
  """Adds the task to the registry of SeqIO."""
  import tensorflow as tf

  directory = pathlib.Path(os.environ[DATA_VARIABLE])
  names = tuple(LENGTHS)

  def read(split, shuffle_files, seed=None):
    del shuffle_files, seed
    if split == 'train':
      spec = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
      return tf.data.TFRecordDataset(str(directory / 'train.tfrecord')).map(
        lambda record: tf.io.parse_single_example(record, spec)
      )
    lines = (directory / 'validation.jsonl').read_text().splitlines()
    examples = [json.loads(line) for line in lines]
    return tf.data.Dataset.from_tensor_slices(
      {name: [e[name] for e in examples] for name in names}
    )

  vocabulary = seqio.SentencePieceVocabulary(
    str(directory / 'vocabulary.model')
  )
  seqio.TaskRegistry.add(
    TASK,
    source=seqio.FunctionDataSource(read, splits=['train', 'validation']),
    preprocessors=[
      seqio.preprocessors.tokenize,
      seqio.preprocessors.append_eos,
    ],
    output_features={
      name: seqio.Feature(vocabulary, add_eos=name == 'targets')
      for name in names
    },
    metric_fns=[similarity, mean_score],
  )


@experiment_registry.register
class TinySeqIO(model_params.TransformerLmSpmdAdafactor):
  """A language model that answers the questions of the task."""

  # Rows of a host.
  BATCH_SIZE = 4
  VOCAB_SIZE = VOCABULARY_SIZE
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  NUM_HEADS = 2
  DIMS_PER_HEAD = None
  NUM_LAYERS = 1
  FPROP_DTYPE = jnp.float32
  PACKED_INPUT = False
  USE_ROTARY_POSITION_EMB = True
  LEARNING_RATE = 0.01
  ICI_MESH_SHAPE = [1, 1, 1]
  NUM_TRAIN_STEPS = 6
  SPLIT = 'validation'

  def task(self) -> Config[Any]:
    task_p = super().task()
    task_p.train.set(
      num_train_steps=self.NUM_TRAIN_STEPS,
      eval_interval_steps=self.NUM_TRAIN_STEPS // 2,
      decode_interval_steps=self.NUM_TRAIN_STEPS,
      save_interval_steps=self.NUM_TRAIN_STEPS,
      summary_interval_steps=self.NUM_TRAIN_STEPS,
      eval_skip_train=True,
    )
    task_p.model.decoder_tpl = Config(
      decoding.GreedyDecoderHParams,
      fprop_for_prefix=True,
      seqlen=LENGTHS['inputs'] + LENGTHS['targets'],
      max_decode_steps=LENGTHS['targets'],
      eos_id=1,
    )
    return task_p

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    train = Config(
      seqio_input.SeqIOInput,
      name='train',
      mixture_name=TASK,
      split_name='train',
      is_training=True,
      input_random_seed=7,
      batch_size=self.BATCH_SIZE,
      task_feature_lengths=LENGTHS,
      feature_converter=Config(lm_features.LanguageModelFeatures, pack=False),
    )
    return [train, *self._evaluated(seqio_outputs.MetricType.SCORE)]

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    return self._evaluated(seqio_outputs.MetricType.PREDICT)

  def _evaluated(
    self, metric_type: seqio_outputs.MetricType
  ) -> list[Config[base_input.BaseInput]]:
    return evaluation.get_eval_hparams_for_seqio(
      TASK,
      self.BATCH_SIZE,
      LENGTHS,
      seed=1,
      metric_type=metric_type,
      split_name=self.SPLIT,
    )
