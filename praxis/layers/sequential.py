# SPDX-License-Identifier: Apache-2.0
"""A composition of layers in sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from praxis import base_layer


class Sequential(base_layer.BaseLayer):
  """Calls layers in order, each with the output of the previous one.

  A tuple becomes positional arguments of the next layer, a dict (or NestedMap)
  keyword arguments, anything else a single argument. `chain` is more general.
  """

  # Layers, their Configs, or functions.
  layers: Sequence[Callable[..., Any]] | None = None

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of the last layer; the first gets all arguments.

    Raises:
      ValueError: there are no layers.
    """
    if not self.layers:
      raise ValueError(f'layers of Sequential {self.name!r} must not be empty')
    first_output = self.layers[0](*args, **kwargs)
    return functools.reduce(_apply, self.layers[1:], first_output)


def _apply(outputs: Any, layer: Callable[..., Any]) -> Any:
  """Returns the output of `layer` for the outputs of the previous one."""
  match outputs:
    case tuple():
      return layer(*outputs)
    case dict():
      return layer(**outputs)
    case _:
      return layer(outputs)
