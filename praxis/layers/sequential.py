# SPDX-License-Identifier: Apache-2.0
"""Layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from praxis import base_layer


class Sequential(base_layer.BaseLayer):
  """Calls layers in order, each with what the one before returned.

  A tuple becomes positional arguments of the next layer, a dict (or NestedMap)
  keyword arguments, anything else its only argument. `chain` is the general
  way of doing this.
  """

  # The layers (or their Configs), or any functions.
  layers: Sequence[Callable[..., Any]] | None = None

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the last layer returns; arguments go to the first."""
    if not self.layers:
      raise ValueError(f'layers of Sequential {self.name!r} must not be empty')
    first, *rest = self.layers
    outputs = first(*args, **kwargs)
    for layer in rest:
      if isinstance(outputs, tuple):
        outputs = layer(*outputs)
      elif isinstance(outputs, dict):
        outputs = layer(**outputs)
      else:
        outputs = layer(outputs)
    return outputs
