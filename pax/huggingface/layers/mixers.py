# SPDX-License-Identifier: Apache-2.0
"""The interface of layers that mix positions, such as attention."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixer(abc.ABC):
  """The settings of the mixer of a transformer layer."""

  # Name of its tensors in the transformer layer.
  tensors: ClassVar[str] = 'self_attn'
  # Number of positions that a query sees, itself included; None for all. The
  # stack has the windows of its layers.
  window: int | None = None
  # Index of the layer whose keys and values it attends to, which the stack has,
  # too; None for its own.
  key_source: int | None = None

  @abc.abstractmethod
  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer, without its window.

    Args:
      norm: That of the model.
    """

  @abc.abstractmethod
  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer.

    Args:
      source: Name of the layer in the files.
      target: Path of the layer.
      model_dims: Dimension of the model.
    """
