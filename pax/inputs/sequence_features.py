# SPDX-License-Identifier: Apache-2.0
"""Conversion of SeqIO examples to rows for encoder-decoder models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import batch_types, seqio_packing
from praxis import base_hyperparams, py_utils

NestedMap = py_utils.NestedMap
# Features of an example, and the maximum length of each, by name.
Example = Mapping[str, np.ndarray]
Lengths = Mapping[str, int]

# Read by the encoder, and by the decoder.
_FEATURES = ('inputs', 'targets')


class SequenceModelFeatures(base_hyperparams.FiddleBaseParameterizable):
  """Converts examples with `inputs` and `targets` to rows.

  All labels that are tokens have weight 1. The result equals that of SeqIO's
  EncDecFeatureConverter.
  """

  # Whether a row may hold several examples.
  pack: bool = False
  # Must be False: there is no custom packing operation.
  use_custom_packing_ops: bool = False
  # First decoder input of each sequence.
  bos_id: int = 0

  def __post_init__(self):
    super().__post_init__()
    if self.use_custom_packing_ops:
      raise ValueError('use_custom_packing_ops must be False, got True')

  def group_size(self, lengths: Lengths) -> int:
    """Returns the number of examples to convert together."""
    return max(lengths.values()) if self.pack else 1

  def rows(
    self, examples: Sequence[Example], lengths: Lengths
  ) -> list[batch_types.EncoderDecoderBatch]:
    """Returns the rows of some examples; see LanguageModelFeatures.rows."""
    limits = [lengths[name] for name in _FEATURES]
    sequences = [self._sequences(example, limits) for example in examples]
    indices = [[i] for i in range(len(sequences))]
    if self.pack:
      sizes = [[len(tokens) for tokens in pair] for pair in sequences]
      indices = seqio_packing.next_fit(sizes, limits)
    rows = []
    for row_indices in indices:
      inputs, targets = (
        seqio_packing.concatenate([sequences[i][j] for i in row_indices], limit)
        for j, limit in enumerate(limits)
      )
      rows.append(self._row(inputs, targets))
    return rows

  def _sequences(
    self, example: Example, limits: Sequence[int]
  ) -> list[np.ndarray]:
    """Returns the tokens of [inputs, targets]."""
    sequences = [
      np.asarray(example[name], np.int32)[:limit]
      for name, limit in zip(_FEATURES, limits, strict=True)
    ]
    if not self.pack:
      return sequences
    return [seqio_packing.strip_padding(tokens) for tokens in sequences]

  def _row(
    self, inputs: seqio_packing.Row, targets: seqio_packing.Row
  ) -> batch_types.EncoderDecoderBatch:
    row = NestedMap(
      src=self._packed_fields(inputs), tgt=self._packed_fields(targets)
    )
    row.src.ids = inputs.tokens
    row.tgt.ids = targets.shifted(self.bos_id, self.pack)
    row.tgt.labels = targets.tokens
    row.tgt.weights = 1 - row.tgt.paddings
    return row

  def _packed_fields(self, row: seqio_packing.Row) -> NestedMap:
    """Returns paddings, segment_ids and segment_pos."""
    is_token = (row.tokens != 0).astype(np.int32)
    segments, positions = row.segments, row.positions
    if not self.pack:
      segments, positions = is_token, np.arange(len(is_token)) * is_token
    return NestedMap(
      paddings=(1 - is_token).astype(np.float32),
      segment_ids=segments * is_token,
      segment_pos=positions.astype(np.int32),
    )
