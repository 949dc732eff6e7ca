# SPDX-License-Identifier: Apache-2.0
"""Our rows are those of SeqIO's own converters; C4's tasks cut what they join.

pip install seqio && pytest tests/compare/seqio_test.py
"""

from __future__ import annotations

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pax.inputs import c4_tasks, lm_features, seqio_input, sequence_features
from praxis import pax_fiddle

_RANDOM = np.random.default_rng(0)
_TEXTS = [
  ''.join(chr(97 + c) for c in _RANDOM.integers(26, size=size))
  for size in _RANDOM.integers(1, 40, size=53)
]
_VOCABULARY = seqio.ByteVocabulary()
_LENGTHS = {
  'pax_c4': {'targets': 16},
  'pax_texts': {'targets': 48},
  'pax_pairs': {'inputs': 30, 'targets': 20},
}
_JOINED = 8


def _source(**features):
  return seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
      features
    ),
    splits=['train', 'validation'],
  )


def _features(*names):
  return {n: seqio.Feature(_VOCABULARY, add_eos=False) for n in names}


@pytest.fixture(scope='module', autouse=True)
def tasks():
  tokenize = seqio.preprocessors.tokenize
  for name, source, preprocessors, features in (
    (
      'pax_c4',
      _source(text=_TEXTS),
      c4_tasks.train_preprocessors(seqio, documents=_JOINED),
      ('targets',),
    ),
    (
      'pax_texts',
      _source(text=_TEXTS),
      [c4_tasks.only('text'), tokenize],
      ('targets',),
    ),
    (
      'pax_pairs',
      _source(inputs=_TEXTS, targets=_TEXTS[::-1]),
      [tokenize],
      ('inputs', 'targets'),
    ),
  ):
    seqio.TaskRegistry.add(
      name,
      source=source,
      preprocessors=preprocessors,
      output_features=_features(*features),
      metric_fns=[],
    )


def _examples(task):
  return seqio.get_mixture_or_task(task).get_dataset(
    sequence_length=_LENGTHS[task], split='validation', shuffle=False
  )


def _input(task, converter, **kwargs):
  settings = {
    'mixture_name': task,
    'split_name': 'validation',
    'batch_size': 4,
    'task_feature_lengths': _LENGTHS[task],
    'feature_converter': pax_fiddle.Config(
      lm_features.LanguageModelFeatures, **converter
    ),
    **kwargs,
  }
  return seqio_input.SeqIOInput.config(**settings).Instantiate()


def _rows(source):
  found = []
  while (batch := source.peek_padded()) is not None:
    source.get_next_padded()
    found += [
      {name: values[row] for name, values in batch.items()}
      for row in range(len(batch.labels))
      if batch.eval_sample_weights[row]
    ]
  return found


@pytest.mark.parametrize('bos_id', [0, 7])
@pytest.mark.parametrize('pack', [False, True])
@pytest.mark.parametrize('task', _LENGTHS)
def test_rows_are_those_of_seqio(task, pack, bos_id):
  theirs = seqio.DecoderFeatureConverter(pack=pack, bos_id=bos_id)
  wanted = list(theirs(_examples(task), _LENGTHS[task]).as_numpy_iterator())
  converter = {'pack': pack, 'bos_id': bos_id}
  found = _rows(_input(task, converter, reset_for_eval=True))
  assert len(found) == len(wanted)
  names = {
    'decoder_input_tokens': 'ids',
    'decoder_target_tokens': 'labels',
    'decoder_causal_attention': 'inputs_indicator',
    'decoder_segment_ids': 'segment_ids',
    'decoder_positions': 'segment_pos',
  }
  for row, other in zip(found, wanted, strict=True):
    for theirs_name, name in names.items():
      if theirs_name in other:
        np.testing.assert_array_equal(row[name], other[theirs_name], name)
    counted = other['decoder_loss_weights'] > 0
    if 'decoder_causal_attention' in other:
      counted |= other['decoder_causal_attention'] > 0
    np.testing.assert_array_equal(row['weights'], counted)


@pytest.mark.parametrize('pack', [False, True])
def test_rows_of_two_sides_are_those_of_seqio(pack):
  theirs = seqio.EncDecFeatureConverter(pack=pack, bos_id=7)
  lengths = _LENGTHS['pax_pairs']
  wanted = list(theirs(_examples('pax_pairs'), lengths).as_numpy_iterator())
  source = _input('pax_pairs', {}, reset_for_eval=True).hparams.clone()
  source.feature_converter = pax_fiddle.Config(
    sequence_features.SequenceModelFeatures, pack=pack, bos_id=7
  )
  source.batch_size = 1
  source = source.Instantiate()
  names = {
    'encoder_input_tokens': ('src', 'ids'),
    'decoder_input_tokens': ('tgt', 'ids'),
    'decoder_target_tokens': ('tgt', 'labels'),
    'decoder_loss_weights': ('tgt', 'weights'),
    'encoder_segment_ids': ('src', 'segment_ids'),
    'decoder_segment_ids': ('tgt', 'segment_ids'),
    'encoder_positions': ('src', 'segment_pos'),
    'decoder_positions': ('tgt', 'segment_pos'),
  }
  for row in wanted:
    batch = source.get_next()
    for name in row:
      side, feature = names[name]
      np.testing.assert_array_equal(batch[side][feature][0], row[name], name)
  assert source.peek_padded() is None


def test_documents_are_joined_then_cut():
  length = _LENGTHS['pax_c4']['targets']
  found = [
    x['targets'].tolist() for x in _examples('pax_c4').as_numpy_iterator()
  ]
  wanted = []
  for first in range(0, len(_TEXTS), _JOINED):
    text = _VOCABULARY.encode(''.join(_TEXTS[first : first + _JOINED]))
    wanted += [text[i : i + length] for i in range(0, len(text), length)]
  assert found == wanted


@pytest.mark.filterwarnings('ignore')
def test_training_goes_on_from_its_state():
  settings = {
    'is_training': True,
    'split_name': 'train',
    'input_random_seed': 5,
    'task': 'pax_texts',
    'converter': {'pack': True},
  }
  source = _input(**settings)
  before = [source.get_next() for _ in range(7)]
  other = _input(**settings)
  other.set_state(source.get_state())
  for _ in range(10):
    np.testing.assert_array_equal(other.get_next().ids, source.get_next().ids)
  other.reset()
  np.testing.assert_array_equal(other.get_next().ids, before[0].ids)


def test_hosts_share_an_epoch():
  hosts = [
    _rows(
      _input(
        'pax_texts',
        {},
        reset_for_eval=True,
        num_infeed_hosts=2,
        infeed_host_index=index,
      )
    )
    for index in (0, 1)
  ]
  texts = [
    _VOCABULARY.decode(row['labels'][row['weights'] > 0].tolist())
    for rows in hosts
    for row in rows
  ]
  assert sorted(texts) == sorted(_TEXTS)
