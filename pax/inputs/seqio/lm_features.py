# SPDX-License-Identifier: Apache-2.0
"""Conversion of SeqIO examples to rows for language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax.inputs.seqio import converters, tasks
from praxis import py_utils

NestedMap = py_utils.NestedMap
Features = converters.Features


class LanguageModelFeatures(converters.SeqIOConverter):
  """Converts examples to the fields of a `batch_types.LanguageModelBatch`.

  An instance is a seqio.DecoderFeatureConverter. Examples have `targets` and
  may have `inputs`, which precede them (a prefix language model), and
  `suffixes`, which follow them.
  """

  SEQIO_BASE = 'DecoderFeatureConverter'

  def __init__(
    self,
    pack: bool = False,
    use_custom_packing_ops: bool = False,
    weights_on_targets_only: bool | None = None,
    apply_length_check: bool = True,
    bos_id: int = 0,
    reverse_bos_padding: bool = False,
    eos_id: int = 1,
    target_has_suffix: bool = False,
    passthrough_features: Mapping[str, Any] | None = None,
  ):
    """Makes the converter.

    Args:
      pack: Whether a row may hold several examples.
      use_custom_packing_ops: Whether SeqIO packs by operations of its own,
        which are not public.
      weights_on_targets_only: The labels with weight. None: tokens that are not
        negative. True: those among them that are targets. False: all tokens.
      apply_length_check: Whether an example that is too long is an error
        instead of being truncated.
      bos_id: First id of each sequence.
      reverse_bos_padding: Whether ids start with the first token instead of
        `bos_id`, and labels are one token ahead.
      eos_id: Last label with `reverse_bos_padding`.
      target_has_suffix: Whether only suffixes have weights, or the targets of
        examples with an empty suffix.
      passthrough_features: The `seqio.FeatureConverter.FeatureSpec` of each
        feature that a row gets unchanged.
    """
    self._weights_on_targets_only = weights_on_targets_only
    self._reverse_bos_padding = reverse_bos_padding
    self._eos_id = eos_id
    self._target_has_suffix = target_has_suffix
    super().__init__(
      loss_on_targets_only=True,
      pack=pack,
      use_custom_packing_ops=use_custom_packing_ops,
      apply_length_check=apply_length_check,
      bos_id=bos_id,
      passthrough_features=passthrough_features,
    )

  @property
  def weights_on_targets_only(self) -> bool | None:
    """Which labels have weight; see `__init__`."""
    return self._weights_on_targets_only

  @property
  def target_has_suffix(self) -> bool:
    """Whether only suffixes of targets have weights."""
    return self._target_has_suffix

  def __call__(self, ds: Any, task_feature_lengths: converters.Lengths) -> Any:
    """Returns the tf.data dataset of rows.

    Args:
      ds: A tf.data dataset of examples.
      task_feature_lengths: Maximum length of each feature, in tokens.
    """
    return super().__call__(ds, task_feature_lengths).map(self._to_pax)

  def _to_pax(self, features: Features) -> NestedMap:
    """Returns the row of SeqIO's decoder features.

    Raises:
      ValueError: The row is to be packed, but has no segments.
    """
    tf = tasks.load_tensorflow()
    labels = features['decoder_target_tokens']
    has_loss = features['decoder_loss_weights'] > 0
    is_text = has_loss
    row = NestedMap()
    if 'decoder_causal_attention' in features:
      row.inputs_indicator = features['decoder_causal_attention']
      is_text = tf.logical_or(row.inputs_indicator > 0, has_loss)
    row.weights = tf.cast(is_text, tf.float32)
    row.paddings = 1.0 - row.weights
    row.segment_ids, row.segment_pos = converters.segments(
      features, 'decoder', row.paddings, self.pack
    )
    for name in self._passthrough_features:
      row[name] = features[name]
    if self.weights_on_targets_only is not False:
      row.weights *= tf.cast(labels >= 0, tf.float32)
    if self.weights_on_targets_only:
      row.weights *= tf.cast(has_loss, tf.float32)
    if self.target_has_suffix:
      row.weights *= tf.cast(features['target_suffix_weights'], tf.float32)
    row.ids = tf.abs(features['decoder_input_tokens'])
    row.labels = tf.abs(labels)
    if self._reverse_bos_padding:
      row.ids = row.labels
      last_values = {'labels': self._eos_id, 'weights': 0.0, 'paddings': 1.0}
      for name, last in last_values.items():
        row[name] = tf.concat([row[name][1:], [last]], axis=0)
    return row


class PackedLanguageModelFeatures(LanguageModelFeatures):
  """Converts examples that are SeqIO's decoder features already."""

  def __init__(self):
    super().__init__(pack=False)

  def __call__(self, ds: Any, task_feature_lengths: converters.Lengths) -> Any:
    del task_feature_lengths  # The examples are rows.
    return ds.map(self._to_pax)
