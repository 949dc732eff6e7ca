# SPDX-License-Identifier: Apache-2.0
"""Conversion of SeqIO examples to rows for encoder-decoder models."""

from __future__ import annotations

from typing import Any

from pax.inputs.seqio import converters, tasks
from praxis import py_utils

NestedMap = py_utils.NestedMap
Features = converters.Features

# Features with the task of an example, by which a model may route.
_TASK_IDS = ('task_ids', 'src_task_ids', 'tgt_task_ids')


class SequenceModelFeatures(converters.SeqIOConverter):
  """Converts examples to the fields of a `batch_types.EncoderDecoderBatch`.

  An instance is a seqio.EncDecFeatureConverter. Examples have `inputs` and
  `targets`. All labels that are tokens have weight 1.
  """

  SEQIO_BASE = 'EncDecFeatureConverter'

  def __init__(
    self,
    pack: bool = False,
    use_custom_packing_ops: bool = False,
    bos_id: int = 0,
  ):
    """Makes the converter.

    Args:
      pack: Whether a row may hold several examples.
      use_custom_packing_ops: Whether SeqIO packs by operations of its own,
        which are not public.
      bos_id: First decoder input of each sequence.
    """
    super().__init__(
      pack=pack, use_custom_packing_ops=use_custom_packing_ops, bos_id=bos_id
    )

  def __call__(self, ds: Any, task_feature_lengths: converters.Lengths) -> Any:
    """Returns the tf.data dataset of rows; see LanguageModelFeatures."""
    return super().__call__(ds, task_feature_lengths).map(self._to_pax)

  def _to_pax(self, features: Features) -> NestedMap:
    """Returns the row of SeqIO's encoder and decoder features.

    Raises:
      ValueError: The row is to be packed, but has no segments.
    """
    tf = tasks.load_tensorflow()
    row = NestedMap(src=NestedMap(), tgt=NestedMap())
    row.src.ids = features['encoder_input_tokens']
    row.src.paddings = tf.cast(row.src.ids == 0, tf.float32)
    row.tgt.ids = features['decoder_input_tokens']
    row.tgt.labels = features['decoder_target_tokens']
    row.tgt.weights = tf.cast(features['decoder_loss_weights'], tf.float32)
    row.tgt.paddings = 1.0 - row.tgt.weights
    for name, side in (('encoder', row.src), ('decoder', row.tgt)):
      side.segment_ids, side.segment_pos = converters.segments(
        features, name, side.paddings, self.pack
      )
    for name in _TASK_IDS:
      if name in features:
        prefix = name.removesuffix('task_ids').rstrip('_')
        for side in (prefix,) if prefix else ('src', 'tgt'):
          row[side].task_ids = features[name]
    return row


class SequenceModelFeaturesWithTaskInfo(SequenceModelFeatures):
  """Also copies the features `task_ids`, `src_task_ids` and `tgt_task_ids`.

  A row gets them as `src.task_ids` and `tgt.task_ids`.
  """

  def _convert_example(self, features: Features) -> Features:
    task_ids = {name: features[name] for name in _TASK_IDS if name in features}
    return {**super()._convert_example(features), **task_ids}

  def __call__(self, ds: Any, task_feature_lengths: converters.Lengths) -> Any:
    # SeqIO's own `__call__` refuses features that it does not know.
    return self._convert_features(ds, task_feature_lengths).map(self._to_pax)


class PackedSequenceModelFeatures(SequenceModelFeatures):
  """Converts examples that are SeqIO's encoder-decoder features already."""

  def __init__(self):
    super().__init__(pack=False)

  def __call__(self, ds: Any, task_feature_lengths: converters.Lengths) -> Any:
    del task_feature_lengths  # The examples are rows.
    return ds.map(self._to_pax)
