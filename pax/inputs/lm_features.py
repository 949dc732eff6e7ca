# SPDX-License-Identifier: Apache-2.0
"""From examples of SeqIO's tasks to rows that a language model trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import seqio_packing
from praxis import base_hyperparams, py_utils

NestedMap = py_utils.NestedMap
Example = Mapping[str, np.ndarray]
Lengths = Mapping[str, int]


class LanguageModelFeatures(base_hyperparams.FiddleBaseParameterizable):
  """Reads `targets`, or `inputs` with `targets` behind them, one after another.

  A row has ids, labels, segment_ids and segment_pos, int32 [T], weights and
  paddings, float32 [T], and with `inputs` also inputs_indicator, int32 [T]: 1
  where the model may look ahead. T is the sum of the features' lengths.

  The features of SeqIO's DecoderFeatureConverter, made without TensorFlow.
  """

  # Whether a row holds several examples.
  pack: bool = False
  # SeqIO's compiled operation for that; there is none here.
  use_custom_packing_ops: bool = False
  # Which labels count: None, all that are not negative; True, of these only
  # targets; False, all.
  weights_on_targets_only: bool | None = None
  # Whether examples that are too long are an error rather than cut.
  apply_length_check: bool = True
  # What stands before a text.
  bos_id: int = 0
  # Whether ids begin with the text itself, labels being one token ahead.
  reverse_bos_padding: bool = False
  # What labels end with then.
  eos_id: int = 1
  # Whether part of the targets is a suffix that is given.
  target_has_suffix: bool = False
  # Features that are taken as they are.
  passthrough_features: Sequence[str] | None = None

  def __post_init__(self):
    super().__post_init__()
    for name in ('use_custom_packing_ops', 'target_has_suffix'):
      if getattr(self, name):
        raise ValueError(f'{name} must be False here, got True')
    if self.pack and self.passthrough_features:
      raise ValueError(
        'passthrough_features must be None with pack=True, got '
        f'{list(self.passthrough_features)}; a row has several examples'
      )

  def group_size(self, lengths: Lengths) -> int:
    """Returns how many examples are made into rows together."""
    return self._row_length(lengths) if self.pack else 1

  def rows(
    self, examples: Sequence[Example], lengths: Lengths
  ) -> list[NestedMap]:
    """Returns the rows that hold these examples.

    Args:
      examples: at most `group_size` of them, with a one-dimensional array for
        each of `lengths`.
      lengths: of features, as the task has them: task_feature_lengths.
    """
    texts = [self._text(example, lengths) for example in examples]
    length = self._row_length(lengths)
    if self.pack:
      texts = [
        (seqio_packing.without_padding(tokens)[:length], width)
        for tokens, width in texts
      ]
      sizes = [[len(tokens)] for tokens, _ in texts]
      return [
        self._row(self._decoder_features([texts[i] for i in row], length))
        for row in seqio_packing.next_fit(sizes, [length])
      ]
    found = []
    for text, example in zip(texts, examples, strict=True):
      row = self._row(self._decoder_features([text], length))
      row.update({k: example[k] for k in self.passthrough_features or ()})
      found.append(row)
    return found

  def _row_length(self, lengths: Lengths) -> int:
    passed = self.passthrough_features or ()
    return sum(size for name, size in lengths.items() if name not in passed)

  def _text(self, example: Example, lengths: Lengths) -> tuple[np.ndarray, int]:
    """Returns the tokens of an example, and how many of them are inputs."""
    parts = {}
    for name in ('inputs', 'targets'):
      if name in lengths:
        tokens = np.asarray(example[name], np.int32)
        is_too_long = len(tokens) > lengths[name] and not self.pack
        if is_too_long and self.apply_length_check:
          raise ValueError(
            f'{name} must have at most {lengths[name]} tokens, got '
            f'{len(tokens)}; raise task_feature_lengths or cut them in the task'
          )
        parts[name] = tokens[: lengths[name]]
    targets = parts['targets']
    if 'inputs' not in parts:
      return targets, -1
    if not len(targets):
      targets = np.zeros(1, np.int32)
    return np.concatenate([parts['inputs'], targets]), len(parts['inputs'])

  def _decoder_features(
    self, texts: Sequence[tuple[np.ndarray, int]], length: int
  ) -> dict[str, np.ndarray]:
    """Returns what SeqIO calls the features of a decoder, for texts in a row.

    Args:
      texts: tokens, and how many of them are inputs; -1 where there are none.
      length: positions of the row.
    """
    row = seqio_packing.lay_out([tokens for tokens, _ in texts], length)
    widths = np.array([-1, *(width for _, width in texts)])[row.segments]
    is_token = row.tokens != 0
    is_input = row.positions < widths
    features = {
      'decoder_target_tokens': row.tokens,
      'decoder_input_tokens': row.shifted(self.bos_id, self.pack),
      'decoder_loss_weights': (is_token ^ is_input).astype(np.int32),
    }
    if any(width >= 0 for _, width in texts):
      is_ahead = row.positions < widths + 1
      features['decoder_causal_attention'] = is_ahead.astype(np.int32)
    if self.pack:
      features['decoder_segment_ids'] = row.segments * is_token
      features['decoder_positions'] = row.positions
    return features

  def _row(self, features: Example) -> NestedMap:
    """Returns what a model of ours reads for SeqIO's features of a decoder."""
    labels = features['decoder_target_tokens']
    counted = features['decoder_loss_weights'] > 0
    is_text = counted
    row = NestedMap()
    if 'decoder_causal_attention' in features:
      row.inputs_indicator = features['decoder_causal_attention']
      is_text = counted | (row.inputs_indicator > 0)
    row.weights = is_text.astype(np.float32)
    row.paddings = 1 - row.weights
    if 'decoder_segment_ids' in features:
      row.segment_ids = features['decoder_segment_ids']
      row.segment_pos = features['decoder_positions']
    else:
      row.segment_ids = is_text.astype(np.int32)
      row.segment_pos = row.segment_ids * np.arange(len(labels), dtype=np.int32)
    if self.weights_on_targets_only is not False:
      row.weights *= labels >= 0
    if self.weights_on_targets_only:
      row.weights *= counted
    row.ids = np.abs(features['decoder_input_tokens'])
    row.labels = np.abs(labels)
    if self.reverse_bos_padding:
      row.ids = row.labels
      for name, last in (
        ('labels', self.eos_id),
        ('weights', 0),
        ('paddings', 1),
      ):
        row[name] = np.append(row[name][1:], row[name].dtype.type(last))
    return row


class PackedLanguageModelFeatures(LanguageModelFeatures):
  """Takes examples that are packed already, as SeqIO's decoder features."""

  def rows(
    self, examples: Sequence[Example], lengths: Lengths
  ) -> list[NestedMap]:
    del lengths
    return [self._row(example) for example in examples]
