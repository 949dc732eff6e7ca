# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=@pypi_seqio//seqio
"""Rows of SeqIO's feature converters, computed by hand."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from pax.inputs.seqio import converters as seqio_converters
from pax.inputs.seqio import lm_features, sequence_features
from pax.inputs.seqio import outputs as seqio_outputs

seqio = pytest.importorskip('seqio')
tf = pytest.importorskip('tensorflow')


def convert(examples, lengths, cls=lm_features.LanguageModelFeatures, **kwargs):
  """Returns the rows that a converter makes of examples."""
  signature = {
    name: tf.TensorSpec([None], tf.int32) for name in examples[0].keys()
  }
  dataset = tf.data.Dataset.from_generator(
    lambda: iter(examples), output_signature=signature
  )
  return list(cls(**kwargs)(dataset, lengths).as_numpy_iterator())


def check(row, **expected):
  for name, values in expected.items():
    np.testing.assert_array_equal(row[name], values, name)
    is_float = name in ('weights', 'paddings')
    assert row[name].dtype == (np.float32 if is_float else np.int32)


class TestLanguageModelFeatures:
  """Rows computed by hand."""

  def test_one_text(self):
    (row,) = convert([{'targets': [5, 6, 1]}], {'targets': 5}, bos_id=9)
    check(
      row,
      ids=[9, 5, 6, 1, 0],
      labels=[5, 6, 1, 0, 0],
      weights=[1, 1, 1, 0, 0],
      paddings=[0, 0, 0, 1, 1],
      segment_ids=[1, 1, 1, 0, 0],
      segment_pos=[0, 1, 2, 0, 0],
    )
    assert 'inputs_indicator' not in row

  def test_packed_texts_with_prefixes(self):
    (row,) = convert(
      [
        {'inputs': [7, 8, 5, 1], 'targets': [3, 9, 1]},
        {'inputs': [8, 4, 9, 3, 1], 'targets': [4, 1]},
      ],
      {'inputs': 7, 'targets': 8},
      pack=True,
    )
    check(
      row,
      labels=[7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0],
      ids=[0, 7, 8, 5, 1, 3, 9, 0, 8, 4, 9, 3, 1, 4, 0],
      weights=[1] * 14 + [0],
      segment_pos=[*range(7), *range(7), 0],
      segment_ids=[1] * 7 + [2] * 7 + [0],
      inputs_indicator=[1] * 5 + [0] * 2 + [1] * 6 + [0] * 2,
    )

  @pytest.mark.parametrize(
    ('setting', 'weights'),
    [
      (None, [1, 0, 1, 0, 1, 0]),
      (True, [0, 0, 0, 0, 1, 0]),
      (False, [1, 1, 1, 1, 1, 0]),
    ],
  )
  def test_which_labels_count(self, setting, weights):
    (row,) = convert(
      [{'inputs': [5, -6, 7], 'targets': [-3, 4]}],
      {'inputs': 3, 'targets': 3},
      weights_on_targets_only=setting,
    )
    check(
      row,
      labels=[5, 6, 7, 3, 4, 0],
      ids=[0, 5, 6, 7, 3, 4],
      paddings=[0, 0, 0, 0, 0, 1],
      weights=weights,
    )

  def test_without_bos(self):
    (row,) = convert(
      [{'targets': [5, 6, 7, 8]}],
      {'targets': 4},
      pack=True,
      reverse_bos_padding=True,
      eos_id=2,
    )
    check(
      row,
      ids=[5, 6, 7, 8],
      labels=[6, 7, 8, 2],
      weights=[1, 1, 1, 0],
      paddings=[0, 0, 0, 1],
      segment_ids=[1] * 4,
      segment_pos=[0, 1, 2, 3],
    )

  def test_features_that_pass_through(self):
    (row,) = convert(
      [{'inputs': [4], 'targets': [5], 'idx': [3]}],
      {'inputs': 1, 'targets': 2, 'idx': 1},
      passthrough_features={
        'idx': seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
      },
    )
    check(row, labels=[4, 5, 0], idx=[3])

  @pytest.mark.parametrize(
    'target_has_suffix, weights',
    [
      (True, [0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0]),
      (False, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]),
    ],
  )
  def test_suffixes_of_targets(self, target_has_suffix, weights):
    """The example of SeqIO's PrefixSuffixLMFeatureConverter."""
    (row,) = convert(
      [
        {'inputs': [9, 4, 6], 'targets': [3, 9], 'suffixes': [2, 1]},
        {'inputs': [3, 2], 'targets': [4], 'suffixes': []},
      ],
      {'inputs': 7, 'targets': 4, 'suffixes': 4},
      pack=True,
      target_has_suffix=target_has_suffix,
    )
    check(
      row,
      labels=[9, 4, 6, 3, 9, 2, 1, 3, 2, 4, 0, 0, 0, 0, 0],
      ids=[0, 9, 4, 6, 3, 9, 2, 0, 3, 2, 0, 0, 0, 0, 0],
      weights=weights,
      inputs_indicator=[1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
      segment_ids=[1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0],
    )

  def test_rows_that_are_packed_already(self):
    features = {
      'decoder_target_tokens': [5, 6, 0],
      'decoder_input_tokens': [0, 0, 0],
      'decoder_loss_weights': [1, 1, 0],
      'decoder_segment_ids': [1, 2, 0],
      'decoder_positions': [0, 0, 0],
    }
    packed = lm_features.PackedLanguageModelFeatures
    (row,) = convert([features], {'targets': 3}, packed)
    check(row, labels=[5, 6, 0], segment_ids=[1, 2, 0], weights=[1, 1, 0])


class TestSequenceModelFeatures:
  """Rows with a source and a target."""

  _EXAMPLES = [
    {'inputs': [5, 6, 1], 'targets': [7, 1]},
    {'inputs': [8], 'targets': [9, 9, 1]},
    {'inputs': [4, 4], 'targets': [3]},
  ]

  def test_one_example(self):
    (row,) = convert(
      self._EXAMPLES[:1],
      {'inputs': 4, 'targets': 5},
      sequence_features.SequenceModelFeatures,
      bos_id=2,
    )
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

  def test_examples_share_a_row_while_both_sides_fit(self):
    rows = convert(
      self._EXAMPLES,
      {'inputs': 5, 'targets': 5},
      sequence_features.SequenceModelFeatures,
      pack=True,
      bos_id=2,
    )
    check(rows[0].src, ids=[5, 6, 1, 8, 0], segment_ids=[1, 1, 1, 2, 0])
    check(rows[0].tgt, ids=[2, 7, 2, 9, 9], segment_pos=[0, 1, 0, 1, 2])
    assert rows[1].tgt.labels.tolist() == [3, 0, 0, 0, 0]

  @pytest.mark.parametrize(
    ('features', 'expected'),
    [({'task_ids': [3]}, [3, 3]), ({'src_task_ids': [4]}, [4, None])],
  )
  def test_ids_of_tasks(self, features, expected):
    (row,) = convert(
      [self._EXAMPLES[0] | features],
      {'inputs': 3, 'targets': 2} | dict.fromkeys(features, 1),
      sequence_features.SequenceModelFeaturesWithTaskInfo,
    )
    assert [side.get('task_ids') for side in (row.src, row.tgt)] == expected

  def test_rows_that_are_packed_already(self):
    tokens = {
      'encoder_input_tokens': [5, 6],
      'decoder_input_tokens': [0, 7],
      'decoder_target_tokens': [7, 8],
      'decoder_loss_weights': [1, 1],
    }
    segments = {
      f'{side}_{name}': values
      for side in ('encoder', 'decoder')
      for name, values in (('segment_ids', [1, 2]), ('positions', [0, 0]))
    }
    cls = sequence_features.PackedSequenceModelFeatures
    (row,) = convert([tokens | segments], {}, cls)
    check(row.src, ids=[5, 6], segment_ids=[1, 2], segment_pos=[0, 0])
    with_positions = sequence_features.PackedSequenceModelFeatures()
    with_positions._pack = True
    with pytest.raises(ValueError, match='pack must be False'):
      with_positions._to_pax({k: tf.constant(x) for k, x in tokens.items()})


class TestConverters:
  """Converters are those of SeqIO."""

  def test_provenance_is_removed(self):
    dataset = tf.data.Dataset.from_tensors({'a/b': 1, 'provenance/c': 2})
    for cls, expected in (
      (seqio_converters.RemoveProvenance, {'a/b': 1}),
      (seqio_converters.UnflattenAndRemoveProvenance, {'a': {'b': 1}}),
    ):
      (row,) = cls()(dataset, {}).as_numpy_iterator()
      assert row == expected
      assert isinstance(cls(), seqio.PassThroughFeatureConverter)

  def test_classes(self):
    class Mine(lm_features.LanguageModelFeatures):
      def _to_pax(self, features):
        row = super()._to_pax(features)
        row.ids = row.ids + 1
        return row

    converter = Mine(pack=True, bos_id=3)
    assert isinstance(converter, Mine)
    assert isinstance(converter, lm_features.LanguageModelFeatures)
    assert isinstance(converter, seqio.DecoderFeatureConverter)
    assert (converter.pack, converter.bos_id) == (True, 3)
    assert seqio_outputs.is_packing_on(converter)
    assert not seqio_outputs.is_packing_on(
      sequence_features.SequenceModelFeatures()
    )
    (row,) = convert([{'targets': [5]}], {'targets': 2}, Mine)
    check(row, ids=[1, 6])

  def test_copies(self):
    converter = sequence_features.SequenceModelFeatures(bos_id=4)
    for other in (
      copy.deepcopy(converter),
      pickle.loads(pickle.dumps(converter)),
    ):
      assert type(other) is type(converter)
      assert other.bos_id == 4
    expected = (
      'SequenceModelFeatures(pack=False, use_custom_packing_ops=False,'
      ' bos_id=4)'
    )
    assert str(converter) == expected
