# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=@pypi_seqio//seqio
"""Inputs of SeqIO tasks over files that the test writes."""

from __future__ import annotations

import gc
import json
import types
import weakref

import numpy as np
import pytest

from pax.inputs import prefetch
from pax.inputs.seqio import (
  dataset_iterator,
  datasets,
  lm_features,
  seqio_input,
)
from praxis import base_input, pax_fiddle, py_utils
from praxis.base_input import data_fingerprints
from tests.testing import nightly

seqio = pytest.importorskip('seqio')
tf = pytest.importorskip('tensorflow')

TEXTS = ['a cat', 'the dog sat', 'on', 'a mat and', 'the log']
_GENERATED = 'generated'
TEXT, PAIRS, COUNTS = 'lines_of_text', 'json_pairs', 'counts'


def write_tfrecords(path, texts):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for text in texts:
      feature = tf.train.Feature(
        bytes_list=tf.train.BytesList(value=[text.encode()])
      )
      features = tf.train.Features(feature={'targets': feature})
      example = tf.train.Example(features=features)
      writer.write(example.SerializeToString())


def _vocabulary(folder):
  import sentencepiece

  (folder / 'corpus.txt').write_text('\n'.join(TEXTS * 20))
  sentencepiece.SentencePieceTrainer.train(
    input=str(folder / 'corpus.txt'),
    model_prefix=str(folder / 'model'),
    vocab_size=30,
    hard_vocab_limit=False,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )
  return seqio.SentencePieceVocabulary(str(folder / 'model.model'))


def _counts(count):
  """Example i is `i % 3 + 1` tokens `10 + i`."""

  def tokens(example):
    i = tf.cast(example, tf.int32)
    return {'targets': tf.fill([i % 3 + 1], 10 + i), 'text': 'text'}

  return tf.data.Dataset.range(count).map(tokens)


def _five_counts(split, shuffle_files, seed=None):
  return _counts(5)


def two_counts(split, shuffle_files, seed=None):
  return _counts(2)


def _generated(split, shuffle_files, seed=None):
  """Like _counts; a Python generator, whose iterator has no state."""
  return tf.data.Dataset.from_generator(
    lambda: ({'targets': [10 + i] * (i % 3 + 1)} for i in range(12)),
    output_signature={'targets': tf.TensorSpec([None], tf.int32)},
  )


def function_source(read):
  return seqio.FunctionDataSource(read, splits=['train', 'test', 'validation'])


@pytest.fixture(scope='module', autouse=True)
def tasks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  vocabulary = _vocabulary(folder)
  plain = seqio.PassThroughVocabulary(100)
  write_tfrecords(folder / 'texts.tfrecord', TEXTS)
  rows = [
    {'inputs': x, 'targets': y} for x, y in zip(TEXTS, TEXTS[::-1], strict=True)
  ]
  (folder / 'pairs.jsonl').write_text('\n'.join(map(json.dumps, rows)))

  def parse(line):
    pairs = {'inputs': b'', 'targets': b''}
    decode = lambda text: [json.loads(text.decode())[name] for name in pairs]
    texts = tf.numpy_function(decode, [line], [tf.string, tf.string])
    return {
      n: tf.ensure_shape(t, ()) for n, t in zip(pairs, texts, strict=True)
    }

  splits = dict.fromkeys(('train', 'test'), str(folder / 'texts.tfrecord'))
  pairs = dict.fromkeys(('train', 'test'), str(folder / 'pairs.jsonl'))
  description = {'targets': tf.io.FixedLenFeature([], tf.string)}
  inputs = {'inputs': seqio.Feature(vocabulary, add_eos=False)}
  targets = {'targets': seqio.Feature(vocabulary, add_eos=True)}
  tokenize = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
  count_features = {'targets': seqio.Feature(plain, add_eos=False)}
  add = seqio.TaskRegistry.add
  add(
    TEXT,
    source=seqio.TFExampleDataSource(splits, description),
    preprocessors=tokenize,
    output_features=targets,
    metric_fns=[],
  )
  add(
    PAIRS,
    source=seqio.TextLineDataSource(pairs),
    preprocessors=[lambda dataset: dataset.map(parse), *tokenize],
    output_features=inputs | targets,
    metric_fns=[],
  )
  for name, read in ((COUNTS, _five_counts), (_GENERATED, _generated)):
    add(
      name,
      source=function_source(read),
      preprocessors=[],
      output_features=count_features,
      metric_fns=[],
    )
  seqio.MixtureRegistry.add('mixed', [COUNTS, _GENERATED], default_rate=1.0)
  yield vocabulary
  for name in (TEXT, PAIRS, COUNTS, _GENERATED):
    seqio.TaskRegistry.remove(name)
  seqio.MixtureRegistry.remove('mixed')


def make(**kwargs):
  converter = pax_fiddle.Config(
    lm_features.LanguageModelFeatures, **kwargs.pop('converter', {})
  )
  settings = {
    'mixture_name': COUNTS,
    'split_name': 'train' if kwargs.get('is_training') else 'test',
    'task_feature_lengths': {'targets': 4},
    'feature_converter': converter,
    'batch_size': 2,
    **kwargs,
  }
  return seqio_input.SeqIOInput.config(**settings).Instantiate()


def drain(source):
  batches = []
  while source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def texts(batches):
  """Returns the examples of COUNTS in batches, in order."""
  examples = []
  for batch in batches:
    for row in range(len(batch.labels)):
      if batch.eval_sample_weights[row]:
        segments = batch.segment_ids[row]
        for segment in range(1, segments.max() + 1):
          label = batch.labels[row][segments == segment][0]
          examples.append(int(label) - 10)
  return examples


class TestData:
  """Epochs, shards, padding and ids."""

  def test_an_epoch_is_every_example_once(self):
    source = make(reset_for_eval=True)
    for _ in range(2):
      batches = drain(source)
      assert texts(batches) == list(range(5))
      weights = [b.eval_sample_weights.tolist() for b in batches]
      assert weights == [[1, 1], [1, 1], [1, 0]]
      source.reset()
    assert source.name == f'{COUNTS}_test'
    indices = [b[py_utils.INDEX_WITHIN_SHARD_KEY].tolist() for b in batches]
    assert indices == [[0, 1], [2, 3], [4, -1]]
    assert isinstance(source.dataset, tf.data.Dataset)

  @pytest.mark.parametrize('annotated', [False, True])
  def test_rows_that_fill_a_batch(self, annotated):
    source = make(reset_for_eval=True, annotate_padding_fields=annotated)
    last = drain(source)[-1]
    # A copy of the first row, with one token.
    assert last.labels[1].tolist() == [10, 0, 0, 0]
    assert last.weights[1].sum() == (0 if annotated else 1)
    np.testing.assert_array_equal(last.paddings[1], 1 - last.weights[1])

  def test_hosts_have_equally_many_batches(self, monkeypatch):
    monkeypatch.setattr(seqio_input, '_max_over_hosts', lambda value: 4)
    hosts = [
      drain(make(reset_for_eval=True, num_infeed_hosts=8, infeed_host_index=i))
      for i in (0, 1, 5)
    ]
    assert [len(batches) for batches in hosts] == [4, 4, 4]
    # Of five examples the sixth host has none.
    assert [texts(batches) for batches in hosts] == [[0], [1], []]
    assert hosts[2][0].labels[0].tolist() == [10, 0, 0, 0]
    assert (hosts[2][0][py_utils.NUM_SHARDS_KEY] == -1).all()
    assert hosts[1][0][py_utils.SHARD_INDEX_KEY].tolist() == [1, -1]

  def test_training_repeats_shuffles_and_shares_out(self):
    hosts = [
      make(
        is_training=True,
        input_random_seed=3,
        num_infeed_hosts=2,
        infeed_host_index=i,
      )
      for i in (0, 1)
    ]
    batches = [[h.get_next() for _ in range(15)] for h in hosts]
    examples = [texts(b) for b in batches]
    assert sorted(examples[0][:3] + examples[1][:2]) == list(range(5))
    epochs = np.reshape(examples[0], (10, 3)).tolist()
    assert len(set(map(tuple, epochs))) > 1
    assert (batches[0][0][py_utils.SHARD_INDEX_KEY] == -1).all()

  def test_evaluation_may_roll_on(self):
    source = make(repeat=True)
    batches = [source.get_next() for _ in range(5)]
    assert texts(batches) == [*range(5), *range(5)]
    rest = drain(make(eval_auto_pad=False, drop_remainder=False))
    assert [len(b.labels) for b in rest] == [2, 2, 1]
    assert len(drain(make(eval_auto_pad=False))) == 2

  def test_an_epoch_of_evaluation_ends(self):
    with pytest.raises(ValueError, match='must end with reset_for_eval=True'):
      make(repeat=True, reset_for_eval=True)

  def test_batches_are_left_out(self):
    settings = {'is_training': True, 'input_random_seed': 0}
    source = make(**settings)
    expected = [source.get_next() for _ in range(3)][2]
    batch = make(num_batches_to_skip=2, **settings).get_next()
    np.testing.assert_array_equal(batch.labels, expected.labels)

  def test_only_so_many_examples_count(self):
    assert texts(drain(make(reset_for_eval=True, eval_num_examples=3))) == [
      0,
      1,
      2,
    ]
    # More than there are: the rest is padding.
    batches = drain(make(reset_for_eval=True, eval_num_examples=7))
    assert texts(batches) == list(range(5))
    assert [len(batch.labels) for batch in batches] == [2, 2, 2, 2]

  @pytest.mark.parametrize('name', ['eval_num_examples', 'num_batches_to_skip'])
  def test_numbers_are_not_negative(self, name):
    with pytest.raises(ValueError, match=f'{name} .* at least 0.* got -1'):
      make(is_training=True, **{name: -1})

  def test_the_rows_of_a_random_epoch_remain(self):
    rows = tf.data.Dataset.range(4).map(
      lambda i: tf.random.uniform([], maxval=1 << 30, dtype=tf.int32)
    )
    # The number of rows is unknown, as after most preprocessors.
    rows = rows.filter(lambda x: x >= 0).cache()
    epoch = datasets.take_and_end(rows.concatenate(rows.take(1).repeat()), 4)
    first, second = (list(epoch.as_numpy_iterator()) for _ in range(2))
    assert first == second and len(first) == 4

  def test_files_and_text_of_ids(self, tasks):
    lengths = {'inputs': 24, 'targets': 24}
    source = make(
      mixture_name=PAIRS, task_feature_lengths=lengths, reset_for_eval=True
    )
    labels = np.concatenate([b.labels for b in drain(source)])[:5]
    sizes = (labels > 0).sum(axis=1)
    pairs = zip(TEXTS, TEXTS[::-1], strict=True)
    decoded = source.ids_to_strings(labels, sizes)
    assert [x.replace(' ', '') for x in decoded] == [
      (x + y).replace(' ', '') for x, y in pairs
    ]
    assert source.vocabularies()['targets'].digest.startswith('sha256:')
    vocabulary = source.task_inst.output_features['targets'].vocabulary
    sizes = dict.fromkeys(lengths, vocabulary.vocab_size)
    assert source.vocabulary_sizes() == sizes
    assert make(mixture_name=COUNTS).vocabulary_sizes() == {}
    source = make(mixture_name=TEXT, task_feature_lengths={'targets': 24})
    row = source.get_next().labels[1]
    assert source.ids_to_strings(row, None) == [TEXTS[1]]
    with pytest.raises(ValueError, match="got 'other'"):
      source.ids_to_strings(row, None, key='other')
    mine = types.SimpleNamespace(decode=lambda ids: 'mine')
    source = make(overridden_vocab=mine)
    assert source.ids_to_strings(row, None) == ['mine']

  def test_a_dropped_input_is_gone_at_once(self):
    # Its iterators have threads; the collector may come minutes later.
    gc.disable()
    try:
      source = make(reset_for_eval=True)
      drain(source)
      source.targets_by_id()
      dropped = weakref.ref(source)
      del source
      assert dropped() is None
    finally:
      gc.enable()

  def test_only_training_adjusts_its_parallelism(self):
    assert (
      make(is_training=True).dataset.options().autotune.enabled is not False
    )
    assert make().dataset.options().autotune.enabled is False

  def test_a_mixture(self):
    source = make(mixture_name='mixed', is_training=True, input_random_seed=0)
    assert source.is_mixture
    assert len(set(texts([source.get_next() for _ in range(30)]))) == 12
    with pytest.raises(ValueError, match='needs a task, got the mixture'):
      _ = source.task_inst
    assert make().task_inst is seqio.get_mixture_or_task(COUNTS)


TRAINING = {'is_training': True, 'input_random_seed': 1}


@pytest.fixture(scope='module')
def pair(tasks):
  """Inputs at any batch; to trace their datasets takes seconds."""
  return make(**TRAINING), make(**TRAINING)


class TestStates:
  """States of the iterator, and of inputs without."""

  @pytest.mark.parametrize(
    ('pack', 'symbolic'),
    [
      *nightly.cases((False, False)),
      (True, True),
      *nightly.cases((False, True), (True, False)),
    ],
  )
  def test_continues_from_any_state(self, pack, symbolic):
    settings = {
      **TRAINING,
      'batch_size': 3,
      'converter': {'pack': pack},
      'input_checkpointing_enabled': symbolic,
    }
    source, other = make(**settings), make(**settings)
    for _ in range(3):
      text = base_input.state_to_json(source.get_state())
      expected = [source.get_next() for _ in range(3)]
      other.set_state(base_input.state_from_json(text))
      for batch in expected:
        np.testing.assert_array_equal(other.get_next().labels, batch.labels)

  @pytest.mark.parametrize('is_older', [False, True])
  def test_states_of_several_chunks_and_of_tensorflow(
    self, monkeypatch, is_older
  ):
    monkeypatch.setattr(dataset_iterator, '_PARTS', 2)
    source, other = make(**TRAINING), make(**TRAINING)
    for _ in range(3):
      source.get_next()
    state = source._get_state_internal()
    if is_older:
      state = source._iter._iterator._save().numpy()
    other._set_state_internal(state)
    for _ in range(5):
      np.testing.assert_array_equal(
        other.get_next().labels, source.get_next().labels
      )

  def test_states_do_not_grow(self, pair):
    source, _ = pair
    sizes = []
    for count in (2, 50):
      for _ in range(count):
        source.get_next()
      sizes.append(len(source._get_state_internal()))
    assert max(sizes) < 1.1 * min(sizes)

  def test_does_not_read_again(self, pair, monkeypatch, tmp_path):
    source, other = pair
    for _ in range(8):
      source.get_next()
    state = source.get_state()
    assert isinstance(source._get_state_internal(), bytes)
    source.save(tmp_path / 'state')
    expected = source.get_next()
    monkeypatch.setattr(seqio_input.SeqIOInput, 'get_next', None)
    other.set_state(state)
    monkeypatch.undo()
    np.testing.assert_array_equal(other.get_next().labels, expected.labels)
    other.restore(tmp_path / 'state')
    np.testing.assert_array_equal(other.get_next().labels, expected.labels)

  def test_a_peeked_batch_is_not_lost(self, pair):
    source, other = pair
    source.get_next_padded()
    expected = source.peek_padded()
    text = base_input.state_to_json(source.get_state())
    other.set_state(base_input.state_from_json(text))
    np.testing.assert_array_equal(
      other.get_next_padded().labels, expected.labels
    )
    np.testing.assert_array_equal(
      other.get_next_padded().labels,
      [source.get_next_padded() for _ in range(2)][1].labels,
    )

  def test_prefetched_batches_are_not_lost(self, pair):
    source, other = make(**TRAINING), pair[1]
    with prefetch.Prefetcher(source) as prefetcher:
      for _ in range(70):
        prefetcher.get_next()
      state, expected = prefetcher.get_state(), prefetcher.get_next()
    other.set_state(state)
    np.testing.assert_array_equal(other.get_next().labels, expected.labels)

  def test_a_generator_is_read_again(self):
    settings = {
      'mixture_name': _GENERATED,
      **TRAINING,
      'try_in_mem_cache': False,
    }
    source, other = make(**settings), make(**settings)
    for _ in range(4):
      source.get_next()
    state = source.get_state()
    assert source._get_state_internal() == {'batches': 4}
    other.set_state(state)
    assert texts([other.get_next()]) == texts([source.get_next()])
    assert other._get_state_internal() == {'batches': 5}
    assert other.get_state() == source.get_state()
    with pytest.raises(NotImplementedError, match='cannot be saved to a file'):
      source.save('/nowhere')

  @pytest.mark.parametrize('pack', [*nightly.cases(False), True])
  def test_states_of_older_checkpoints(self, pack):
    settings = {**TRAINING, 'batch_size': 1, 'converter': {'pack': pack}}
    source, other = make(**settings), make(**settings)
    batches = [source.get_next() for _ in range(12)]
    # Packing converts as many examples together as a row has positions.
    num_rows = len(convert_first(4, settings)) if pack else 4
    other.set_state({'examples': 4, 'row': 1})
    np.testing.assert_array_equal(
      other.get_next().labels, batches[num_rows + 1].labels
    )

  def test_states_of_other_data(self, pair):
    source, _ = pair
    other = make(is_training=True, shuffle=False, split_name='test')
    changes = 'split was train, is test; seed was 1, is null'
    with pytest.raises(data_fingerprints.ChangedDataError, match=changes):
      other.set_state(source.get_state())
    # With --accept_changed_data, or of an earlier version.
    state = source._get_state_internal()
    with pytest.raises(ValueError, match='state of another dataset than'):
      other.set_state(state)
    with pytest.raises(ValueError, match=r"got \['position'\]"):
      other.set_state({'position': 3})


def convert_first(num_examples, settings):
  """Returns the packed rows of the first examples."""
  source = make(**settings)
  examples = source._examples((0, 1)).take(num_examples)
  return list(source._rows(examples, None).as_numpy_iterator())


class TestTargets:
  """Examples of all hosts for metrics."""

  @pytest.mark.parametrize('from_input', [False, True])
  def test_targets_have_ids(self, from_input):
    source = make(
      reset_for_eval=True,
      use_targets_from_input_ds=from_input,
      task_feature_lengths={'targets': 2},
      eval_metrics_targets_length=3,
    )
    assert not source.is_targets_init
    assert source.should_use_targets_from_input_ds is from_input
    assert (source.cached_input_ds is not None) == from_input
    source.init_targets()
    assert source.is_targets_init
    targets = list(source.targets_iter)
    assert [x['targets'].tolist() for x in targets][2:4] == [[12] * 3, [13]]
    assert [int(x[py_utils.INDEX_WITHIN_SHARD_KEY]) for x in targets] == [
      *range(5)
    ]
    source.reset()
    assert len(list(source.targets_iter)) == source.num_target_examples == 5
    assert source.get_next().labels.shape == (2, 2)

  def test_targets_of_hosts(self):
    source = make(reset_for_eval=True, num_infeed_hosts=2)
    source.init_targets()
    ids = [
      tuple(int(x[name]) for name in py_utils.ENUM_PROVENANCE_KEYS)
      for x in source.targets_iter
    ]
    # Index in the shard, shard, number of shards.
    assert sorted(ids) == sorted((i // 2, i % 2, 2) for i in range(5))

  def test_ragged_features(self):
    def ragged(dataset):
      add = lambda x: {**x, 'ragged': tf.ragged.constant([[1], [2, 3]])}
      return dataset.map(add)

    task = seqio.Task(
      'ragged',
      source=function_source(two_counts),
      preprocessors=[ragged],
      output_features=seqio.get_mixture_or_task(COUNTS).output_features,
    )
    source = make(mixture_name=None, mixture_or_task=task)
    source.init_targets()
    assert source.ds_ragged_tensor_keys == ['ragged']
    assert 'targets' in source.ds_non_ragged_tensor_keys
    assert 'ragged' not in next(source.targets_iter)
    assert next(source.targets_iter_ori)['ragged'].flat_values.shape == [3]
