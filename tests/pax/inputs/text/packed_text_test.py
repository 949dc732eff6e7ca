# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Text batches: each row once per epoch, the same on every run and host."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest

from pax.inputs.text import packed_text
from pax.inputs.tokens import tokenizers

BOS = tokenizers.ByteTokenizer.bos_id


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """Forty files: each second byte tells the file, the others the place."""
  folder = tmp_path_factory.mktemp('corpus')
  for i in range(40):
    content = bytes(b for j in range(2 + i * 3) for b in (i + 33, j + 128))
    (folder / f'{i:02}.txt').write_bytes(content)
  return str(folder / '*.txt')


def make(corpus, **kwargs):
  settings = {
    'files': corpus,
    'batch_size': 4,
    'seq_len': 16,
    'held_out_percent': 25.0,
    'is_training': True,
    **kwargs,
  }
  return packed_text.TextLmInput.config(**settings).Instantiate()


def evaluation(corpus, **kwargs):
  return make(corpus, is_training=False, held_out=True, **kwargs)


def rows(batches) -> list[bytes]:
  """What identifies each row that is not padding."""
  return [
    b.ids[r].tobytes() + b.labels[r].tobytes() + b.segment_ids[r].tobytes()
    for b in batches
    for r in range(len(b.ids))
    if b.weights[r].any()
  ]


def drain(source) -> list:
  batches = []
  while source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def take(source, count: int) -> list:
  return [source.get_next() for _ in range(count)]


def assert_same(left, right):
  assert len(left) == len(right)
  for a, b in zip(left, right, strict=True):
    assert sorted(a) == sorted(b)
    for name in a:
      np.testing.assert_array_equal(a[name], b[name])


def epoch_rows(corpus, **kwargs) -> list[bytes]:
  """All training rows, in their own order."""
  return rows(drain(make(corpus, is_training=False, batch_size=1, **kwargs)))


def test_two_runs_see_the_same_batches(corpus):
  assert_same(take(make(corpus), 30), take(make(corpus), 30))


@pytest.mark.parametrize('at', [0, 1, 7, 26, 61])
def test_a_run_resumes_at_any_batch(corpus, at):
  source = make(corpus)
  take(source, at)
  state = json.loads(json.dumps(source.get_state()))
  expected = take(source, 5)
  resumed = make(corpus)
  take(resumed, 3)
  resumed.set_state(state)
  assert_same(take(resumed, 5), expected)


def test_a_pickled_input_goes_on(corpus):
  source = make(corpus)
  take(source, 3)
  copy = pickle.loads(pickle.dumps(source))
  assert_same(take(copy, 3), take(source, 3))


def test_an_epoch_has_every_row_once_and_epochs_differ(corpus):
  expected = sorted(epoch_rows(corpus))
  total = len(expected)
  stream = rows(take(make(corpus, batch_size=1), 3 * total))
  epochs = [stream[i * total : (i + 1) * total] for i in range(3)]
  for epoch in epochs:
    assert sorted(epoch) == expected
  assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_seed_chooses_the_order(corpus):
  default, other = (
    rows(take(make(corpus, input_random_seed=s), 8)) for s in (None, 5)
  )
  assert default != other


@pytest.mark.parametrize('hosts', [2, 3])
def test_hosts_share_out_the_global_batch(corpus, hosts):
  together = take(make(corpus, batch_size=4 * hosts), 12)
  apart = [
    take(make(corpus, num_infeed_hosts=hosts, infeed_host_index=h), 12)
    for h in range(hosts)
  ]
  for step, batch in enumerate(together):
    joined = np.concatenate([apart[h][step].ids for h in range(hosts)])
    np.testing.assert_array_equal(joined, batch.ids)


def test_hosts_are_disjoint_within_an_epoch(corpus):
  num_batches = len(epoch_rows(corpus)) // 8
  first, second = (
    rows(
      take(make(corpus, num_infeed_hosts=2, infeed_host_index=h), num_batches)
    )
    for h in range(2)
  )
  assert not set(first) & set(second)


def test_a_run_resumes_on_another_number_of_hosts(corpus):
  source = make(corpus, batch_size=8)
  take(source, 5)
  expected = source.get_state(), take(source, 1)[0].ids
  halves = []
  for host in range(2):
    half = make(corpus, num_infeed_hosts=2, infeed_host_index=host)
    half.set_state(expected[0])
    halves.append(half.get_next().ids)
  np.testing.assert_array_equal(np.concatenate(halves), expected[1])


@pytest.mark.parametrize('hosts', [1, 2, 5])
def test_evaluation_ends_together_and_pads_with_weight_zero(corpus, hosts):
  whole = rows(drain(evaluation(corpus, batch_size=1)))
  parts = [
    drain(evaluation(corpus, num_infeed_hosts=hosts, infeed_host_index=h))
    for h in range(hosts)
  ]
  assert {len(p) for p in parts} == {math.ceil(len(whole) / (4 * hosts))}
  assert sorted(r for p in parts for r in rows(p)) == sorted(whole)
  last = parts[-1][-1]
  assert last.ids.shape == (4, 16)
  padding = last.segment_ids == 0
  assert not last.weights[padding].any() and last.paddings[padding].all()


def test_evaluation_starts_over_only_when_reset(corpus):
  source = evaluation(corpus)
  first = drain(source)
  assert len(first) == source.num_batches > 1
  for _ in range(2):
    with pytest.raises(StopIteration):
      source.get_next()
  source.reset()
  assert_same(drain(source), first)


def test_evaluation_may_roll(corpus):
  source = evaluation(corpus, repeat=True, batch_size=1)
  total = source.num_batches
  batches = take(source, 2 * total)
  assert_same(batches[:total], batches[total:])


def test_the_split_shares_no_document(corpus):
  seen = [
    {int(i) for b in drain(source) for i in np.unique(b.ids) if 0 < i < 128}
    for source in (make(corpus, is_training=False), evaluation(corpus))
  ]
  assert not seen[0] & seen[1]
  assert seen[0] | seen[1] == {i + 33 for i in range(40)}


def test_held_out_text_must_exist(corpus):
  with pytest.raises(ValueError, match='must have held-out text'):
    evaluation(corpus, held_out_percent=0.0).get_next()


def test_files_are_looked_for_at_once(tmp_path):
  with pytest.raises(ValueError, match='no file matches'):
    make(str(tmp_path / '*.py'))


def test_bits_per_byte_counts_labels_and_bytes(corpus):
  source = evaluation(corpus)
  labels = sum(b.weights.sum() for b in drain(source))
  documents = sum((b.labels == 257).sum() for b in drain(evaluation(corpus)))
  # A loss of ln 2 nats is one bit for each label.
  derived = source.derived_metrics({'avg_xent': math.log(2)})
  expected = labels / (labels - documents)
  assert derived == {'bits_per_byte': pytest.approx(expected)}
  assert source.derived_metrics({'loss': 1.0}) == {}


def test_text_and_ids(corpus):
  source = make(corpus, sample_prompt='def ')
  [ids] = source.strings_to_ids(['hé'])
  assert list(ids) == [BOS, 104, 195, 169]
  assert source.ids_to_strings([ids, ids], [4, 2]) == ['hé', 'h']


def test_pieces_are_learned_from_training_text_only(corpus, monkeypatch):
  fitted = []
  monkeypatch.setattr(
    tokenizers.ByteTokenizer, 'fit', lambda _, docs: fitted.append(docs)
  )
  make(corpus).get_next()
  evaluation(corpus).get_next()
  assert fitted[0] == fitted[1] and len(fitted[0]) < 40


def test_records_have_their_text_in_a_field(tmp_path):
  texts = [f'text {i}' for i in range(9)]
  plain, records = (tmp_path / name for name in ('plain', 'records'))
  for folder in (plain, records):
    folder.mkdir()
  for i, text in enumerate(texts):
    (plain / f'{i}.txt').write_text(text)
  lines = [json.dumps({'body': text, 'id': 1}) for text in texts]
  (records / 'x.jsonl').write_text('\n'.join(lines))
  from_records = make(str(records), text_field='body')
  assert_same(
    take(from_records, 3), take(make(str(plain), text_field='body'), 3)
  )
  # The position of another field is that of other data.
  assert from_records.data_fingerprint()['text_field'] == 'body'
  assert 'text_field' not in make(str(plain)).data_fingerprint()
  with pytest.raises(ValueError, match=r"line 1 .* object with a text 'text'"):
    make(str(records)).get_next()
