# SPDX-License-Identifier: Apache-2.0
"""Preference pairs for direct preference optimization (DPO).

Shapes: B pairs, T tokens. Each prompt has a preferred response `y_w` and a
dispreferred response `y_l`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Int, Num

from praxis.nested_map import NestedMap


@dataclasses.dataclass(kw_only=True, slots=True)
class Labels:
  """The targets of a model."""

  class_ids: Int[Array, 'B T']
  # 0 in the prompt and in padding.
  class_weights: Num[Array, 'B T']


@dataclasses.dataclass(kw_only=True, slots=True)
class DPOExampleHalf:
  """Prompts followed by one response of each, for a TransformerLm."""

  inputs: Int[Array, 'B T']
  labels: Labels
  # 1 at padding.
  paddings: Num[Array, 'B T']
  # One segment per row; packing is not supported.
  segment_ids: Int[Array, 'B T']
  segment_pos: Int[Array, 'B T']
  # 1 in the prompt.
  inputs_indicator: Num[Array, 'B T'] | None = None
  # 0 at tokens that earlier tokens attend to.
  causal_attention_mask: Num[Array, 'B T'] | None = None

  def as_xformer_lm_input(self) -> NestedMap:
    """Returns the arguments of a TransformerLm."""
    arguments = _as_map(self)
    del arguments['inputs_indicator']
    return arguments


@dataclasses.dataclass(kw_only=True, slots=True)
class DPOExample:
  """A batch of pairs for LanguageModelDPO."""

  y_w: DPOExampleHalf
  y_l: DPOExampleHalf

  @classmethod
  def from_feature_converter(cls, example: Mapping[str, Any]) -> DPOExample:
    """Returns the pairs of a batch.

    Args:
      example: for each `half` of y_w and y_l it has half/inputs,
        half/inputs_indicator, half/labels/ids, half/labels/weights,
        half/paddings, half/segment_ids and half/segment_pos.
    """
    names = (
      'inputs', 'inputs_indicator', 'paddings', 'segment_ids', 'segment_pos'
    )  # fmt: skip

    def half(prefix: str) -> DPOExampleHalf:
      arrays = {name: example[f'{prefix}/{name}'] for name in names}
      return DPOExampleHalf(labels=_labels(example, prefix), **arrays)

    return cls(y_w=half('y_w'), y_l=half('y_l'))


@dataclasses.dataclass(kw_only=True, slots=True, frozen=True)
class DPOExampleHalfSeq2Seq:
  """Prompts and one response of each, for a TransformerEncoderDecoder."""

  inputs: Int[Array, 'B S']
  input_paddings: Num[Array, 'B S']
  targets: Int[Array, 'B T']
  target_paddings: Num[Array, 'B T']
  labels: Labels

  def as_xformer_encdec_input(self) -> NestedMap:
    """Returns the arguments of a TransformerEncoderDecoder."""
    return _as_map(self)


@dataclasses.dataclass(kw_only=True, slots=True)
class DPOExampleSeq2Seq:
  """A batch of pairs for SequenceModelDPO."""

  y_w: DPOExampleHalfSeq2Seq
  y_l: DPOExampleHalfSeq2Seq

  @classmethod
  def from_feature_converter(
    cls, example: Mapping[str, Any]
  ) -> DPOExampleSeq2Seq:
    """Returns the pairs of a batch.

    Args:
      example: has inputs and input_paddings, and for each `half` of targets_w
        and targets_l half, half/paddings, half/labels/ids and
        half/labels/weights.
    """

    def half(prefix: str) -> DPOExampleHalfSeq2Seq:
      return DPOExampleHalfSeq2Seq(
        inputs=example['inputs'],
        input_paddings=example['input_paddings'],
        targets=example[prefix],
        target_paddings=example[f'{prefix}/paddings'],
        labels=_labels(example, prefix),
      )

    return cls(y_w=half('targets_w'), y_l=half('targets_l'))


def _labels(example: Mapping[str, Any], prefix: str) -> Labels:
  return Labels(
    class_ids=example[f'{prefix}/labels/ids'],
    class_weights=example[f'{prefix}/labels/weights'],
  )


def _as_map(record: Any) -> NestedMap:
  """Returns the fields of a dataclass, recursively, as NestedMaps."""
  values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
  return NestedMap({
    name: _as_map(value) if dataclasses.is_dataclass(value) else value
    for name, value in values.items()
  })  # fmt: skip
