# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Batches from token files: their order, their rows, and bad files."""

from __future__ import annotations

import ast
import hashlib
import json
import pathlib

import numpy as np
import pytest

from pax.inputs import lm_input
from pax.inputs.tokens import token_arrays, tokenizers
from praxis import pax_fiddle
from praxis.base_input import data_fingerprints
from tests.testing import data_sets

GLOBAL_BATCH, SEQ_LEN, EOS = 8, 16, 0


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  """Three files of documents, and one without boundaries."""
  folder = tmp_path_factory.mktemp('tokens')
  rng = np.random.default_rng(0)
  for k in range(3):
    documents = [
      [*rng.integers(1000 * (k + 1), 1000 * (k + 2), n), EOS]
      for n in rng.integers(1, 40, 60)
    ]
    data_sets.write_documents(folder / f'{k}', documents)
  rng.integers(1, 5000, 3000).astype(np.uint16).tofile(folder / 'flat.bin')
  return folder


def make(data, num_hosts=1, host=0, **kwargs) -> lm_input.LanguageModelInput:
  settings = {
    'is_training': True,
    'input_random_seed': 7,
    'seq_len': SEQ_LEN,
    **kwargs,
  }
  return lm_input.LanguageModelInput.config(
    data=data,
    batch_size=GLOBAL_BATCH // num_hosts,
    num_infeed_hosts=num_hosts,
    infeed_host_index=host,
    **settings,
  ).Instantiate()


def digest(batches) -> str:
  """A hash of the global batch that hosts read."""
  sha = hashlib.sha256()
  for name in sorted(batches[0]):
    rows = np.concatenate([batch[name] for batch in batches])
    sha.update(f'{name} {rows.dtype} {rows.shape}'.encode() + rows.tobytes())
  return sha.hexdigest()


def read(hosts, count: int) -> list[str]:
  return [digest([host.get_next() for host in hosts]) for _ in range(count)]


def layouts(folder) -> dict[str, dict]:
  return {
    'packed': {'data': str(folder / '0.bin')},
    'first_fit': {'data': str(folder / '[01].bin'), 'layout': 'first_fit'},
    'truncated': {'data': str(folder / '0.bin'), 'layout': 'truncate'},
    'contiguous': {'data': str(folder / 'flat.bin'), 'eos_id': 17},
    'mixture': {
      'data': {
        str(folder / '0.bin'): 0.6,
        str(folder / '[12].bin'): 0.3,
        str(folder / 'flat.bin'): 0.1,
      }
    },
    'stages': {
      'data': {str(folder / '0.bin'): 0.6, str(folder / '1.bin'): 0.4},
      'data_stages': {
        245: {str(folder / '1.bin'): 1.0},
        101: {str(folder / '2.bin'): 0.5, str(folder / '0.bin'): 0.5},
      },
    },
  }


@pytest.mark.parametrize('kind', list(layouts(pathlib.Path())))
def test_global_batches_do_not_depend_on_the_hosts(folder, kind):
  check_hosts(layouts(folder)[kind])


def check_hosts(settings) -> None:
  """Checks the global batches of 1, 2, 4 and 8 hosts, and of changes."""
  expected = read([make(**settings)], 40)
  assert len(set(expected)) == 40
  for count in (2, 4, 8):
    hosts = [make(**settings, num_hosts=count, host=i) for i in range(count)]
    assert read(hosts, 40) == expected
  # The hosts change several times; one state restores all of them.
  digests, state = [], None
  for count in (2, 8, 1, 4):
    hosts = [make(**settings, num_hosts=count, host=i) for i in range(count)]
    for host in hosts:
      if state is not None:
        host.set_state(state)
    digests += read(hosts, 10)
    states = [host.get_state() for host in hosts]
    assert states == [states[0]] * count
    position, _ = data_fingerprints.detach(states[0])
    assert position == {'examples': len(digests) * GLOBAL_BATCH}
    state = json.loads(json.dumps(states[0]))
  assert digests == expected


@pytest.mark.parametrize('kind', data_sets.KINDS)
def test_global_batches_of_each_kind_of_file(tmp_path, monkeypatch, kind):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  check_hosts(
    {
      'data': data_sets.write(kind, tmp_path),
      'tokenizer_tpl': pax_fiddle.Config(tokenizers.ByteTokenizer),
    }
  )


def test_the_state_is_one_integer_and_seeking_restores_it(folder):
  settings = layouts(folder)['mixture']
  source = make(**settings)
  expected = read([source], 30)[20:]
  position, _ = data_fingerprints.detach(source.get_state())
  assert position == {'examples': 30 * GLOBAL_BATCH}
  source.seek(20)
  assert read([source], 10) == expected
  source.seek(10**9)
  far = read([source], 2)
  source.seek(10**9 + 1)
  assert read([source], 1) == far[1:]


CHANGES = {
  'length': ({'seq_len': 32}, 'seq_len was 16, is 32'),
  'layout': ({'layout': 'first_fit'}, 'layout was best_fit, is first_fit'),
  'seed': ({'input_random_seed': 8}, 'seed was 7, is 8'),
  'files': ({'data': '{}/1.bin'}, r'files was .*0\.bin of .*, is .*1\.bin of '),
  'more files': ({'data': '{}/[01].bin'}, 'is .*2 files of .* 0.bin to 1.bin'),
  'order': ({'data': ['{}/1.bin', '{}/0.bin']}, 'files was'),
  'weights': (
    {'data': {'{}/0.bin': 1.0}},
    r'weights was null, is \[1.0\]',
  ),
}


@pytest.mark.parametrize('change', CHANGES)
def test_a_state_of_other_data_is_refused(folder, change):
  settings, message = CHANGES[change]
  own = {'data': str(folder / '0.bin'), 'layout': 'best_fit'}
  if change == 'order':
    own['data'] = [str(folder / '0.bin'), str(folder / '1.bin')]
  source = make(**own)
  source.get_next()
  state = json.loads(json.dumps(source.get_state()))
  make(**own, num_hosts=2).set_state(state)
  text = json.dumps(settings).replace('{}', str(folder))
  changed = make(**{**own, **json.loads(text)})
  with pytest.raises(data_fingerprints.ChangedDataError, match=message) as e:
    changed.set_state(state)
  assert "input 'train'" in str(e.value)
  assert '--accept_changed_data' in str(e.value)
  advice = 'set TRAIN_DATA_STAGES to change them from a row on'
  is_mixture = change in ('files', 'more files', 'order', 'weights')
  assert str(e.value).count(advice) == is_mixture
  # A state without fingerprint, as of older versions, and accepted data.
  changed.set_state({'examples': 8})
  changed.set_state(data_fingerprints.detach_all(state))
  assert changed.get_next()


def test_files_that_were_written_again_or_moved(folder, tmp_path):
  tokens = np.arange(5000, dtype=np.uint16)
  tokens.tofile(tmp_path / 'x.bin')
  state = make(str(tmp_path / 'x.bin')).get_state()
  (tmp_path / 'moved').mkdir()
  tokens.tofile(tmp_path / 'moved' / 'x.bin')
  make(str(tmp_path / 'moved' / 'x.bin')).set_state(state)
  tokens[::-1].tofile(tmp_path / 'x.bin')
  with pytest.raises(ValueError, match='files was .*10,000 bytes, content'):
    make(str(tmp_path / 'x.bin')).set_state(state)


def test_a_state_of_another_tokenizer_is_refused(tmp_path):
  path = data_sets.write_documents(tmp_path / 'a', [[1, 2, 3]] * 9, TOKENIZER)
  state = make(path).get_state()
  other = {**TOKENIZER, 'vocabulary': ['sha256:2', '/b.model']}
  (tmp_path / 'a.json').write_text(json.dumps(other))
  with pytest.raises(ValueError, match='tokenizer was .*sha256:1.* is .*:2'):
    make(path).set_state(state)


def test_a_peeked_batch_is_not_lost(folder):
  source = make(**layouts(folder)['packed'])
  source.get_next_padded()
  peeked = source.peek_padded()
  resumed = make(**layouts(folder)['packed'])
  resumed.set_state(source.get_state())
  np.testing.assert_array_equal(resumed.get_next_padded().ids, peeked.ids)


def test_each_host_reads_only_its_rows(folder, monkeypatch):
  settings = layouts(folder)['packed']
  hosts = [make(**settings, num_hosts=4, host=i) for i in range(4)]
  reads = [[] for _ in hosts]
  for host, indices in zip(hosts, reads, strict=True):
    rows = host.sources[0]
    write = rows.write

    def record(rows, *args, write=write, indices=indices):
      indices += rows.tolist()
      write(rows, *args)

    monkeypatch.setattr(rows, 'write', record)
    host.get_next()
  assert [len(indices) for indices in reads] == [2] * 4
  assert len(set(sum(reads, []))) == GLOBAL_BATCH


def test_an_epoch_has_each_label_once(folder):
  path = str(folder / '0.bin')
  array = token_arrays.open_array(path)
  corpus = array.corpus
  labels = [
    array.tokens[a + 1 : b]
    for a, b in zip(corpus.starts, corpus.starts[1:], strict=False)
  ]
  expected = np.sort(np.concatenate(labels))
  training = make(path)
  rows = training.num_examples
  batches = [training.get_next() for _ in range(rows // GLOBAL_BATCH)]
  left = rows - len(batches) * GLOBAL_BATCH
  last = training.get_next().Transform(lambda x: x[:left])
  for epoch in ([*batches, last], drain(make(path, is_training=False))):
    found = np.concatenate([b.labels[b.weights > 0] for b in epoch])
    np.testing.assert_array_equal(np.sort(found), expected)


def drain(source) -> list:
  batches = []
  while source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def test_evaluation_ends_after_the_same_number_of_batches(folder):
  path = str(folder / '0.bin')
  evals = [
    drain(make(path, num_hosts=8, host=i, is_training=False)) for i in range(8)
  ]
  whole = drain(make(path, is_training=False))
  assert [len(batches) for batches in evals] == [len(whole)] * 8
  for i, batch in enumerate(whole):
    assert digest([batches[i] for batches in evals]) == digest([batch])
  weights = np.concatenate([b.eval_sample_weights for b in whole])
  source = make(path, is_training=False)
  assert weights.sum() == source.num_examples < len(weights)
  padding = whole[-1].eval_sample_weights == 0
  assert (whole[-1].paddings[padding] == 1).all()
  assert (whole[-1].weights[padding] == 0).all()


def test_repeated_evaluation_rolls_over(folder):
  source = make(str(folder / '0.bin'), is_training=False, repeat=True)
  rows = source.num_examples
  ids = [source.get_next().ids for _ in range(2 * rows // GLOBAL_BATCH)]
  ids = np.concatenate(ids)
  np.testing.assert_array_equal(ids[rows:], ids[: len(ids) - rows])


def test_an_epoch_of_evaluation_ends(folder):
  settings = {'is_training': False, 'repeat': True, 'reset_for_eval': True}
  with pytest.raises(ValueError, match='must end with reset_for_eval=True'):
    make(str(folder / '0.bin'), **settings)
  assert make(str(folder / '0.bin'), reset_for_eval=True).repeats


def test_a_contiguous_row_by_hand(tmp_path):
  np.save(tmp_path / 'x.npy', np.array([5, 6, 1, 7, 8, 9, 1, 4, 3]))
  source = make(str(tmp_path / 'x.npy'), seq_len=8, eos_id=1, is_training=False)
  batch = source.get_next().Transform(lambda x: x[0])
  assert batch.ids.tolist() == [5, 6, 1, 7, 8, 9, 1, 4]
  assert batch.labels.tolist() == [6, 1, 7, 8, 9, 1, 4, 3]
  assert batch.segment_ids.tolist() == [1, 1, 1, 2, 2, 2, 2, 3]
  assert batch.segment_pos.tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
  assert batch.weights.tolist() == [1, 1, 0, 1, 1, 1, 0, 1]


def test_mixtures_keep_their_proportions(folder):
  source = make(**layouts(folder)['mixture'], batch_padding_size=0)
  ids = np.concatenate([source.get_next().ids for _ in range(1024)])
  kinds = ids[:, 0] // 1000
  shares = [(kinds == 1).mean(), ((kinds == 2) | (kinds == 3)).mean()]
  # Ids of the flat file are random, so that some count for another component.
  np.testing.assert_allclose(shares, [0.6 + 0.02, 0.3 + 0.04], atol=0.01)


def test_a_stage_goes_on_with_the_next_rows_of_a_data_set(tmp_path):
  """A data set is read once, whatever its weights in each stage are."""
  names = []
  for k in range(3):
    documents = [[1000 * (k + 1) + i] * SEQ_LEN for i in range(600)]
    names.append(data_sets.write_documents(tmp_path / f'{k}', documents))
  a, b, c = names
  source = make(
    data={a: 0.75, b: 0.25},
    data_stages={323: {a: 1, b: 1, c: 2}, 523: {b: 0.1, c: 0.9}},
  )
  ids = np.concatenate([source.get_next().ids[:, 1] for _ in range(100)])
  stages = [ids[:323], ids[323:523], ids[523:]]
  counts = [
    [int((stage // 1000 == k + 1).sum()) for k in range(3)] for stage in stages
  ]
  # Orders are random within 8192 rows: shares deviate as draws do.
  np.testing.assert_allclose(counts[0], [242, 81, 0], atol=20)
  np.testing.assert_allclose(counts[1], [50, 50, 100], atol=20)
  np.testing.assert_allclose(counts[2], [0, 28, 249], atol=20)
  assert counts[0][2] == counts[2][0] == 0
  for k in range(3):
    rows = ids[ids // 1000 == k + 1]
    assert len(rows) > 100 and len(set(rows)) == len(rows)


def test_stages_that_have_not_begun_may_change(folder):
  a, b, c = (str(folder / f'{k}.bin') for k in range(3))
  plain = make(a)
  staged = make(a, data_stages={80: {a: 0.5, b: 0.5}})
  assert read([plain], 10) == read([staged], 10)
  # Row 80 is the next: nothing of the stage has been read.
  state = json.loads(json.dumps(plain.get_state()))
  assert state == staged.get_state()
  other = make(a, data_stages={80: {c: 1.0}, 160: {b: 1.0}})
  other.set_state(state)
  source = make(a, data_stages={80: {a: 0.5, b: 0.5}})
  source.set_state(state)
  assert read([source], 2) == read([staged], 2)
  state = source.get_state()
  for stages in (None, {88: {a: 0.5, b: 0.5}}, {80: {a: 0.4, b: 0.6}}):
    with pytest.raises(
      data_fingerprints.ChangedDataError, match=r'weights was \[\[0, \[1.0, 0'
    ):
      make(a, data_stages=stages).set_state(state)
  with pytest.raises(data_fingerprints.ChangedDataError, match='files was'):
    make(a, data_stages={80: {a: 0.5, c: 0.5}}).set_state(state)
  later = {80: {a: 0.5, b: 0.5}, 96: {c: 1.0}}
  make(a, data_stages=later).set_state(state)


TOKENIZER = {
  'vocabulary': ['sha256:1', '/a.model'],
  'vocab_size': 300,
  'eos_id': EOS,
}


def test_the_tokenizer_of_prepared_files(tmp_path):
  a = data_sets.write_documents(tmp_path / 'a', [[1, 2, 3]], TOKENIZER)
  assert make(a).vocabularies() == {'tokens': ('sha256:1', '/a.model')}
  with pytest.raises(ValueError, match='set VOCAB_SIZE=300'):
    make(a, vocab_size=299).get_next()
  other = {**TOKENIZER, 'vocabulary': ['sha256:2', '/b.model']}
  b = data_sets.write_documents(tmp_path / 'b', [[1, 2, 3]], other)
  with pytest.raises(ValueError, match=r'one tokenizer.*/a.model.*/b.model'):
    make([a, b]).vocabularies()


def test_ids_beyond_the_vocabulary_name_the_document(tmp_path):
  path = data_sets.write_documents(tmp_path / 'a', [[1, 2, 900]])
  with pytest.raises(ValueError, match=r'documents \[0\] of .*a.bin.*below 9'):
    make(path, vocab_size=9).get_next()
  np.array([1, 2, 900], np.uint16).tofile(tmp_path / 'flat.bin')
  with pytest.raises(ValueError, match=r'tokens 0 to 2 of .*got 900'):
    make(str(tmp_path / 'flat.bin'), seq_len=2, vocab_size=9).get_next()


@pytest.mark.parametrize('token', [2**32 + 5, -(2**32) + 5])
@pytest.mark.parametrize('vocab_size', [None, 9])
def test_ids_of_64_bits_do_not_wrap_around(tmp_path, token, vocab_size):
  tokens = np.array([1, 2, token, 3, 4], np.int64)
  np.save(tmp_path / 'a.npy', tokens)
  settings = {'seq_len': 2, 'vocab_size': vocab_size}
  with pytest.raises(ValueError, match=f'tokens 0 to 2 .*npy .*got {token}'):
    make(str(tmp_path / 'a.npy'), **settings).get_next()
  tokens.tofile(tmp_path / 'b.bin')
  token_arrays.write_index(tmp_path / 'b.idx', np.array([5]), np.int64)
  with pytest.raises(ValueError, match=f'documents.*b.bin .*got {token}'):
    make(str(tmp_path / 'b.bin'), **settings).get_next()


STAGE = {80: {'{}/1.bin': 1.0}}


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'data': '/missing/*.bin'}, 'no file of tokens or text matches'),
    ({'data': ''}, 'names no file'),
    ({'data': {'{}/0.bin': -1}}, r'data of .*at least 0.*got \[-1\]'),
    (
      {'data': {'{}/0.bin': 0, '{}/1.bin': 1}, 'is_training': False},
      r'data of .*positive in evaluation.*got \[0, 1\]',
    ),
    (
      {'data': '{}/0.bin', 'data_stages': STAGE, 'is_training': False},
      'data_stages of .*must be None in evaluation',
    ),
    (
      {'data': '{}/0.bin,{}/1.bin', 'data_stages': STAGE},
      'must be a mixture with weights, or one item.*got .*0.bin,',
    ),
    (
      {'data': '{}/0.bin', 'data_stages': {0: {'{}/1.bin': 1}}},
      'begin after a positive number of rows, got 0',
    ),
    (
      {'data': '{}/0.bin', 'data_stages': {80: '{}/1.bin'}},
      "mixtures with weights, got '.*1.bin' from row 80",
    ),
    (
      {'data': '{}/0.bin', 'data_stages': {80: {'{}/1.bin': 0}}},
      r'one weight must be positive, got \[0.0, 0\]',
    ),
    ({'data': {'{}/0.bin': '1'}}, "data of .*must be numbers, got '1'"),
    ({'data': '{}/0.bin', 'layout': 'worst_fit'}, "layout.*got 'worst_fit'"),
    ({'data': '{}/flat.bin', 'layout': 'best_fit'}, 'where documents start'),
    ({'data': '{}/flat.bin', 'seq_len': 9999}, 'no rows; add data, or shorten'),
    ({'data': '{}/none.bin'}, r"none.bin'\] have no tokens; write them again"),
    (
      {'data': {'{}/0.bin': 1, '{}/none.bin': 1}},
      r"none.bin'\] have no tokens",
    ),
  ],
)
def test_wrong_settings(folder, settings, message):
  (folder / 'none.bin').touch()
  settings = ast.literal_eval(repr(settings).replace('{}', str(folder)))
  with pytest.raises(ValueError, match=message):
    make(**settings).get_next()


def test_a_large_tokenizer_is_an_error_before_texts_are_tokenized(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  path = data_sets.write('jsonl', tmp_path)
  tokenizer = pax_fiddle.Config(tokenizers.ByteTokenizer)
  with pytest.raises(ValueError, match=r'jsonl has the ids.*VOCAB_SIZE=259'):
    make(path, tokenizer_tpl=tokenizer, vocab_size=258).get_next()
  assert not (tmp_path / 'cache').exists()
