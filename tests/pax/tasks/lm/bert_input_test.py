# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""BERT records: parsing, epochs, hosts, packing and remasking."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.tasks.lm import input_generator, masking
from tests.pax.tasks.lm import bert_records

CLS, SEP, MASK = bert_records.CLS, bert_records.SEP, bert_records.MASK
LENGTH, PREDICTIONS = 8, 3


def document(text, masked=()):
  """A record of `[CLS] [SEP] text [SEP]`."""
  return bert_records.record(
    [CLS, SEP, *text, SEP], masked, LENGTH, PREDICTIONS
  )


def numbered(numbers):
  """Documents of 1, 2 or 3 tokens, each 200 + its number."""
  return [document([200 + i] * (1 + i % 3), [2]) for i in numbers]


def make(paths=None, **kwargs):
  settings = {
    'batch_size': 2,
    'input_file': paths,
    'max_sequence_length': LENGTH,
    'max_predictions_per_seq': PREDICTIONS,
    **kwargs,
  }
  return input_generator.TFRecordBertInput.config(**settings).Instantiate()


def augmenter(**kwargs):
  return masking.MaskedLmDataAugmenter.config(
    mask_token_id=MASK, vocab_size=300, **kwargs
  )


@pytest.fixture
def files(tmp_path):
  """Two files with documents 0 to 4 and 5 to 8."""
  return [
    bert_records.write(tmp_path / name, numbered(range(*ends)))
    for name, ends in (('a', (0, 5)), ('b', (5, 9)))
  ]


def drain(source):
  batches = []
  while source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def numbers(batches):
  """The documents of batches, one after the other."""
  found = []
  for batch in batches:
    for row in range(len(batch.labels)):
      segments = batch.segment_ids[row]
      for segment in range(1, segments.max(initial=0) + 1):
        labels = batch.labels[row][segments == segment]
        number = labels[1] - 200
        assert list(labels) == [CLS] + [labels[1]] * (1 + number % 3) + [SEP]
        found.append(int(number))
  return found


def test_a_record_by_hand(tmp_path):
  path = bert_records.write(
    tmp_path / 'one', [document([7, 8, 9], [2, 4]), document([6], [2])]
  )
  batch = make(path, batch_size=3).get_next()
  wanted = {
    'labels': [[CLS, 7, 8, 9, SEP, 0, 0, 0], [CLS, 6, SEP] + [0] * 5],
    'masked_ids': [
      [CLS, MASK, 8, MASK, SEP, 0, 0, 0],
      [CLS, MASK, SEP] + [0] * 5,
    ],
    'masked_pos': [[0, 1, 0, 1, 0, 0, 0, 0], [0, 1] + [0] * 6],
    'segment_ids': [[1] * 5 + [0] * 3, [1] * 3 + [0] * 5],
    'segment_pos': [[0, 1, 2, 3, 4, 0, 0, 0], [0, 1, 2] + [0] * 5],
    'paddings': [[0] * 5 + [1] * 3, [0] * 3 + [1] * 5],
  }
  assert set(batch) == set(wanted)
  for name, rows in wanted.items():
    # The row that fills the batch is padding.
    filler = [int(name == 'paddings')] * LENGTH
    np.testing.assert_array_equal(batch[name], [*rows, filler], name)
    is_float = name in ('paddings', 'masked_pos')
    assert batch[name].dtype == (np.float32 if is_float else np.int32)


def test_evaluation_is_every_document_once_in_order(files):
  source = make(files, enable_packing=True, remask=True)
  assert source.reset_for_eval and not source.enable_packing
  assert numbers(drain(source)) == list(range(9))
  assert source.peek_padded() is None
  source.reset()
  first = source.get_next()
  state = json.loads(json.dumps(source.get_state()))
  rest = drain(source)
  source.set_state(state)
  assert numbers([first, *drain(source)]) == list(range(9))
  assert len(rest) == 4


@pytest.mark.parametrize('batch_size', [1, 2, 4, 9])
def test_hosts_evaluate_equally_many_batches(files, batch_size):
  hosts = [
    drain(make(files, batch_size=batch_size, num_infeed_hosts=2, **host))
    for host in ({}, {'infeed_host_index': 1})
  ]
  assert len(hosts[0]) == len(hosts[1])
  found = [
    numbers([batch]) for pair in zip(*hosts, strict=True) for batch in pair
  ]
  assert sum(found, []) == list(range(9))


def test_training_reads_every_document_each_epoch(files):
  source = make(files, is_training=True, batch_size=3, file_buffer_size=4)
  epochs = [numbers([source.get_next() for _ in range(3)]) for _ in range(2)]
  assert [sorted(e) for e in epochs] == [list(range(9))] * 2
  assert epochs[0] != epochs[1]


def test_hosts_train_on_files_of_their_own(files):
  for host, wanted in ((0, range(5)), (1, range(5, 9))):
    source = make(
      files, is_training=True, num_infeed_hosts=2, infeed_host_index=host
    )
    found = numbers([source.get_next() for _ in range(20)])
    assert set(found) == set(wanted)


def test_files_must_be_dealt_out_evenly(files):
  with pytest.raises(
    ValueError, match='multiple of num_infeed_hosts = 3, got 2'
  ):
    make(files, is_training=True, num_infeed_hosts=3)
  make(files, num_infeed_hosts=3)


def test_packing_fills_rows_and_leaves_nothing_out(files):
  source = make(
    files,
    is_training=True,
    enable_packing=True,
    prepacking_batch_size=9,
    batch_size=1,
  )
  # 3 documents each of 3, 4 and 5 tokens make 36 of 40 places.
  batches = [source.get_next() for _ in range(5)]
  assert sorted(numbers(batches)) == list(range(9))
  assert max(batch.segment_ids.max() for batch in batches) == 2
  for batch in batches:
    for segment in (1, 2):
      position = batch.segment_pos[batch.segment_ids == segment]
      np.testing.assert_array_equal(position, np.arange(len(position)))
    np.testing.assert_array_equal(batch.paddings, batch.segment_ids == 0)
    np.testing.assert_array_equal(
      batch.masked_ids == MASK, batch.masked_pos == 1
    )


@pytest.mark.parametrize('packing', [True, False])
def test_training_resumes_at_any_batch(files, packing):
  settings = {
    'is_training': True,
    'enable_packing': packing,
    'prepacking_batch_size': 7,
    'file_buffer_size': 4,
    'remask': True,
    'mlm_augmenter': augmenter(mask_prob=0.4),
  }
  source = make(files, **settings)
  for _ in range(9):
    state = json.loads(json.dumps(source.get_state()))
    wanted = [source.get_next() for _ in range(3)]
    other = make(files, **settings)
    other.set_state(state)
    for batch in wanted:
      found = other.get_next()
      for name in batch:
        np.testing.assert_array_equal(found[name], batch[name])
    source.set_state(state)
    source.get_next()


def test_remasking_masks_others_each_epoch(tmp_path):
  path = bert_records.write(tmp_path / 'one', [document([7, 8, 9], [2])])
  source = make(
    path,
    is_training=True,
    batch_size=1,
    remask=True,
    mlm_augmenter=augmenter(mask_prob=0.5),
  )
  batches = [source.get_next() for _ in range(40)]
  masked = {tuple(b.masked_pos[0]) for b in batches}
  assert len(masked) > 5
  for batch in batches:
    np.testing.assert_array_equal(batch.labels[0], [CLS, 7, 8, 9, SEP, 0, 0, 0])
    is_free = (batch.masked_pos == 0) & (batch.paddings == 0)
    np.testing.assert_array_equal(
      batch.masked_ids[is_free], batch.labels[is_free]
    )
    assert not batch.masked_pos[batch.paddings == 1].any()


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'input_file': None}, 'input_file .* TRAIN_FILES'),
    ({'input_file': '/no/such'}, 'no file matches'),
    ({'is_training': True, 'remask': True}, 'mask_token_id'),
    (
      {
        'is_training': True,
        'remask': True,
        'mlm_augmenter': augmenter(),
        'vocab_size': 299,
      },
      r'vocab_size = 299.* got 300; --set train_input.mlm_augmenter',
    ),
  ],
)
def test_wrong_settings_are_found_before_anything_is_read(
  files, settings, message
):
  with pytest.raises(ValueError, match=message):
    make(**{'input_file': files, **settings})


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'max_sequence_length': 9}, "'input_ids': 9.*'input_ids': 8"),
    ({'eos_token_id': 5}, 'eos_token_id = 5'),
    ({'vocab_size': 201}, 'got 0 to .* with vocab_size 201; set VOCAB_SIZE'),
  ],
)
@pytest.mark.parametrize('is_training', [False, True])
def test_records_that_do_not_fit(files, is_training, settings, message):
  source = make(files, is_training=is_training, **settings)
  with pytest.raises(ValueError, match=rf'record \d of .*/[ab]: .*{message}'):
    source.get_next()
    source.get_next()


@pytest.mark.parametrize('is_training', [False, True])
def test_a_damaged_record_is_named(tmp_path, is_training):
  path = tmp_path / 'one'
  bert_records.write(path, [document([7, 8, 9], [2])])
  content = bytearray(path.read_bytes())
  content[-10] ^= 1
  path.write_bytes(content)
  source = make(str(path), is_training=is_training)
  with pytest.raises(ValueError, match=f'record 0 of {path}'):
    source.get_next()


@pytest.mark.parametrize('is_training', [False, True])
def test_files_without_records(tmp_path, is_training):
  (tmp_path / 'none').touch()
  source = make(str(tmp_path / 'none'), is_training=is_training)
  with pytest.raises(ValueError, match='must have records'):
    source.get_next()
