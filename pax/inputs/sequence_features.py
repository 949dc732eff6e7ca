# SPDX-License-Identifier: Apache-2.0
"""From examples of SeqIO's tasks to rows for models that read, then write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import seqio_packing
from praxis import base_hyperparams, py_utils

NestedMap = py_utils.NestedMap
Example = Mapping[str, np.ndarray]
Lengths = Mapping[str, int]

_SIDES = {'src': 'inputs', 'tgt': 'targets'}


class SequenceModelFeatures(base_hyperparams.FiddleBaseParameterizable):
  """Reads `inputs` into src and `targets` into tgt.

  Both have ids, segment_ids and segment_pos, int32 [T], and paddings, float32
  [T]; tgt also has labels, and weights, which are 1 for all text.

  The features of SeqIO's EncDecFeatureConverter, made without TensorFlow.
  """

  # Whether a row holds several examples.
  pack: bool = False
  # SeqIO's compiled operation for that; there is none here.
  use_custom_packing_ops: bool = False
  # What stands before a text that is written.
  bos_id: int = 0

  def __post_init__(self):
    super().__post_init__()
    if self.use_custom_packing_ops:
      raise ValueError('use_custom_packing_ops must be False here, got True')

  def group_size(self, lengths: Lengths) -> int:
    """Returns how many examples are made into rows together."""
    return max(lengths.values()) if self.pack else 1

  def rows(
    self, examples: Sequence[Example], lengths: Lengths
  ) -> list[NestedMap]:
    """Returns the rows that hold these examples; see LanguageModelFeatures."""
    limits = [lengths[name] for name in _SIDES.values()]
    texts = [self._texts(example, limits) for example in examples]
    which = [[i] for i in range(len(texts))]
    if self.pack:
      which = seqio_packing.next_fit(
        [[len(x) for x in pair] for pair in texts], limits
      )
    found = []
    for row in which:
      sides = [
        seqio_packing.lay_out([texts[i][side] for i in row], limit)
        for side, limit in enumerate(limits)
      ]
      found.append(self._row(*sides))
    return found

  def _texts(self, example: Example, limits: Sequence[int]) -> list[np.ndarray]:
    """Returns the tokens of an example that is read, and of that written."""
    pairs = zip(_SIDES.values(), limits, strict=True)
    texts = [
      np.asarray(example[name], np.int32)[:limit] for name, limit in pairs
    ]
    return (
      [seqio_packing.without_padding(x) for x in texts] if self.pack else texts
    )

  def _row(
    self, source: seqio_packing.Row, target: seqio_packing.Row
  ) -> NestedMap:
    row = NestedMap(src=self._side(source), tgt=self._side(target))
    row.src.ids = source.tokens
    row.tgt.ids = target.shifted(self.bos_id, self.pack)
    row.tgt.labels = target.tokens
    row.tgt.weights = 1 - row.tgt.paddings
    return row

  def _side(self, row: seqio_packing.Row) -> NestedMap:
    is_token = (row.tokens != 0).astype(np.int32)
    segments, positions = row.segments, row.positions
    if not self.pack:
      segments, positions = is_token, np.arange(len(is_token)) * is_token
    return NestedMap(
      paddings=(1 - is_token).astype(np.float32),
      segment_ids=segments * is_token,
      segment_pos=positions.astype(np.int32),
    )
