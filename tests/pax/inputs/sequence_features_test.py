# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Encoder-decoder rows computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pax.inputs import sequence_features

_EXAMPLES = [
  {'inputs': [5, 6, 1], 'targets': [7, 1]},
  {'inputs': [8], 'targets': [9, 9, 1]},
  {'inputs': [4, 4], 'targets': [3]},
]


def convert(examples, lengths, **kwargs):
  cls = sequence_features.SequenceModelFeatures
  converter = cls.config(**kwargs).Instantiate()
  assert converter.group_size(lengths) == (5 if converter.pack else 1)
  return converter.rows(examples, lengths)


def check(side, **wanted):
  assert set(side) == set(wanted)
  for name, values in wanted.items():
    np.testing.assert_array_equal(side[name], values, name)
    is_float = name in ('weights', 'paddings')
    assert side[name].dtype == (np.float32 if is_float else np.int32)


def test_one_example():
  (row,) = convert(_EXAMPLES[:1], {'inputs': 4, 'targets': 5}, bos_id=2)
  check(
    row.src,
    ids=[5, 6, 1, 0],
    paddings=[0, 0, 0, 1],
    segment_ids=[1, 1, 1, 0],
    segment_pos=[0, 1, 2, 0],
  )
  check(
    row.tgt,
    ids=[2, 7, 1, 0, 0],
    labels=[7, 1, 0, 0, 0],
    weights=[1, 1, 0, 0, 0],
    paddings=[0, 0, 1, 1, 1],
    segment_ids=[1, 1, 0, 0, 0],
    segment_pos=[0, 1, 0, 0, 0],
  )


def test_examples_share_a_row_while_both_sides_fit():
  rows = convert(_EXAMPLES, {'inputs': 5, 'targets': 5}, pack=True, bos_id=2)
  assert len(rows) == 2
  check(
    rows[0].src,
    ids=[5, 6, 1, 8, 0],
    paddings=[0, 0, 0, 0, 1],
    segment_ids=[1, 1, 1, 2, 0],
    segment_pos=[0, 1, 2, 0, 0],
  )
  check(
    rows[0].tgt,
    ids=[2, 7, 2, 9, 9],
    labels=[7, 1, 9, 9, 1],
    weights=[1] * 5,
    paddings=[0] * 5,
    segment_ids=[1, 1, 2, 2, 2],
    segment_pos=[0, 1, 0, 1, 2],
  )
  assert rows[1].tgt.labels.tolist() == [3, 0, 0, 0, 0]


def test_what_is_refused():
  with pytest.raises(ValueError, match='use_custom_packing_ops must be False'):
    convert([], {}, use_custom_packing_ops=True)
