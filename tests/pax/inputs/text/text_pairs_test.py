# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows of sources and targets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs.text import span_corruption, text_pairs
from pax.inputs.tokens import tokenizers

_EOS = tokenizers.ByteTokenizer.eos_id


def _pairs(tmp_path, lines, **fields):
  file = tmp_path / 'pairs.jsonl'
  file.write_text('\n'.join(map(json.dumps, lines)))
  defaults = {
    'files': str(file),
    'batch_size': 2,
    'source_len': 4,
    'target_len': 3,
    'held_out_percent': 0.0,
  }
  return text_pairs.TextPairInput.config(**defaults | fields).Instantiate()


def test_a_row_has_a_pair(tmp_path):
  lines = [
    {'input': 'abcdef', 'target': 'x'},
    {'input': 'c', 'target': 'xyz'},
    {'input': 'e'},
  ]
  made = _pairs(tmp_path, lines, start_id=7)
  batch = made.get_next()
  a, c, x, y = (ord(letter) for letter in 'acxy')
  np.testing.assert_array_equal(
    batch.src.ids, [[a, a + 1, a + 2, _EOS], [c, _EOS, 0, 0]]
  )
  np.testing.assert_array_equal(
    batch.src.paddings, [[0, 0, 0, 0], [0, 0, 1, 1]]
  )
  np.testing.assert_array_equal(batch.tgt.labels, [[x, _EOS, 0], [x, y, _EOS]])
  np.testing.assert_array_equal(batch.tgt.ids, [[7, x, _EOS], [7, x, y]])
  np.testing.assert_array_equal(batch.tgt.paddings, [[0, 0, 1], [0, 0, 0]])
  np.testing.assert_array_equal(batch.tgt.weights, 1 - batch.tgt.paddings)
  last = made.get_next()
  np.testing.assert_array_equal(last.eval_sample_weights, [1, 0])
  np.testing.assert_array_equal(last.tgt.weights[1], [0, 0, 0])
  with pytest.raises(StopIteration):
    made.get_next()
  assert made.ids_to_strings(batch.src.ids, np.array([3, 1]), key='src') == [
    'abc',
    'c',
  ]


def test_errors_name_the_line_and_the_fields(tmp_path):
  made = _pairs(tmp_path, [{'input': 'a'}, {'question': 'b'}])
  with pytest.raises(ValueError, match=r"pairs.jsonl:2 must be .*'input'"):
    made.get_next()
  renamed = _pairs(
    tmp_path,
    [{'q': 'a', 'a': 'b'}],
    source_field='q',
    target_field='a',
    held_out=True,
  )
  with pytest.raises(ValueError, match='must have held-out text'):
    renamed.get_next()


def _spans(tmp_path, **fields):
  file = tmp_path / 'text.txt'
  file.write_text('a text of several words, which is long enough. ' * 20)
  defaults = {
    'files': str(file),
    'batch_size': 3,
    'source_len': 32,
    'target_len': 16,
    'held_out_percent': 0.0,
    'is_training': True,
  }
  return span_corruption.SpanCorruptionInput.config(
    **defaults | fields
  ).Instantiate()


def test_targets_have_the_spans_that_sources_lack(tmp_path):
  made = _spans(tmp_path)
  # 35 tokens: 5 in 2 spans; the source has 30 + 2 + eos > 32.
  assert made.window_len == 34
  text = np.frombuffer((tmp_path / 'text.txt').read_bytes(), np.uint8)
  batch = made.get_next()
  first = tokenizers.ByteTokenizer.vocab_size + 99
  for row in range(3):
    source, labels = (
      ids[ids != 0].tolist()
      for ids in (batch.src.ids[row], batch.tgt.labels[row])
    )
    assert source.pop() == labels.pop() == _EOS
    sentinels = [token for token in source if token >= first - 99]
    assert sentinels == [first - i for i in range(len(sentinels))]
    assert [token for token in labels if token >= first - 99] == sentinels
    spans = {}
    for token in labels:
      if token in sentinels:
        span = spans.setdefault(token, [])
      else:
        span.append(token)
    window = [x for token in source for x in spans.get(token, [token])]
    assert len(window) == 34 and sum(map(len, spans.values())) == 5
    starts = [
      start
      for start in range(0, len(text), 34)
      if text[start : start + 34].tolist() == window
    ]
    assert starts


def test_spans_are_a_function_of_the_position(tmp_path):
  made = _spans(tmp_path)
  made.get_next()
  state = made.get_state()
  want = made.get_next()
  hosts = [
    _spans(tmp_path, batch_size=1, num_infeed_hosts=3, infeed_host_index=i)
    for i in range(3)
  ]
  for i, host in enumerate(hosts):
    host.set_state(state)
    np.testing.assert_array_equal(host.get_next().src.ids[0], want.src.ids[i])
  with pytest.raises(ValueError, match='at most 100 spans'):
    _ = _spans(tmp_path, source_len=4096, target_len=4096).window_len
