# SPDX-License-Identifier: Apache-2.0
"""BaseModel: the interface of models."""

from __future__ import annotations

from typing import Any, ClassVar

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.pytypes import JTensor, NestedMap

__getattr__ = module_getattr(__name__)

Predictions = JTensor | NestedMap | dict[str, Any] | dict[int, Any]
# (value, weight) by name; averages over batches are weighted.
WeightedScalars = NestedMap
Metrics = NestedMap
# (weighted scalars, per-example outputs, other metrics).
DecodeOut = tuple[WeightedScalars, NestedMap, NestedMap]
# (weighted scalars, per-example (key, value) pairs, other metrics).
ProcessDecodeOut = tuple[
  WeightedScalars, list[tuple[str, NestedMap]], NestedMap
]


class BaseModel(base_layer.BaseLayer):
  """A network and its losses; the learner selects the loss to minimize."""

  # Fields of a batch that bfloat16 computation leaves in float32.
  FLOAT32_INPUTS: ClassVar[frozenset[str]] = frozenset()

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Returns the predictions that `compute_loss` takes.

    Raises:
      NotImplementedError: a subclass must define it.
    """
    raise NotImplementedError(_missing(self, 'compute_predictions'))

  def compute_loss(
    self, predictions: Any, input_batch: NestedMap
  ) -> tuple[WeightedScalars, dict[str, Any]]:
    """Returns (weighted scalars including the losses, per-example outputs).

    Raises:
      NotImplementedError: a subclass must define it.
    """
    raise NotImplementedError(_missing(self, 'compute_loss'))

  def __call__(
    self, input_batch: NestedMap
  ) -> tuple[WeightedScalars, dict[str, Any]]:
    """Returns `compute_loss` of the batch's predictions."""
    predictions = self.compute_predictions(input_batch)
    return self.compute_loss(predictions, input_batch)

  def predict(self, input_batch: NestedMap) -> Any:
    """Returns the predictions for a batch, without losses."""
    return self.compute_predictions(input_batch)

  def decode(self, input_batch: NestedMap) -> DecodeOut:
    """Returns the generated outputs for a batch.

    Raises:
      NotImplementedError: a subclass must define it.
    """
    raise NotImplementedError(_missing(self, 'decode'))

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> ProcessDecodeOut:
    """Returns metrics and printable outputs of the results of `decode`.

    Raises:
      NotImplementedError: a subclass must define it.
    """
    raise NotImplementedError(_missing(self, 'process_decode_out'))


def _missing(model: BaseModel, method: str) -> str:
  return f'{type(model).__name__} does not define {method}'
