# SPDX-License-Identifier: Apache-2.0
"""The contract of models: predictions from a batch, losses from those."""

from __future__ import annotations

from typing import Any

from praxis import base_layer
from praxis.pytypes import NestedMap

# Name -> (value, weight); averaged over batches by weight.
WeightedScalars = NestedMap
# (weighted scalars, outputs by example, other metrics).
DecodeOut = tuple[WeightedScalars, NestedMap, NestedMap]
# (weighted scalars, (key, value) pairs by example, other metrics).
ProcessDecodeOut = tuple[
  WeightedScalars, list[tuple[str, NestedMap]], NestedMap
]


class BaseModel(base_layer.BaseLayer):
  """A network and its losses; the learner names the one it minimises."""

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Returns what `compute_loss` needs, from a batch."""
    raise NotImplementedError(_missing(self, 'compute_predictions'))

  def compute_loss(
    self, predictions: Any, input_batch: NestedMap
  ) -> tuple[WeightedScalars, NestedMap]:
    """Returns weighted scalars, losses among them, and outputs by example."""
    raise NotImplementedError(_missing(self, 'compute_loss'))

  def __call__(
    self, input_batch: NestedMap
  ) -> tuple[WeightedScalars, NestedMap]:
    """Returns `compute_loss` of `compute_predictions`."""
    predictions = self.compute_predictions(input_batch)
    return self.compute_loss(predictions, input_batch)

  def predict(self, input_batch: NestedMap) -> Any:
    """Returns the predictions for a batch, without losses."""
    return self.compute_predictions(input_batch)

  def decode(self, input_batch: NestedMap) -> DecodeOut:
    """Returns what the model generates for a batch."""
    raise NotImplementedError(_missing(self, 'decode'))

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> ProcessDecodeOut:
    """Returns metrics and printable outputs from what `decode` returned."""
    raise NotImplementedError(_missing(self, 'process_decode_out'))


def _missing(model: BaseModel, method: str) -> str:
  return f'{type(model).__name__} does not define {method}'
