# SPDX-License-Identifier: Apache-2.0
"""Activations by their names in config.json."""

from __future__ import annotations

from praxis import base_layer, pax_fiddle
from praxis.layers import activations

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_ACTIVATIONS = {
  'gelu': lambda: Config(activations.GELU, approximate=False),
  'gelu_new': lambda: Config(activations.GELU, approximate=True),
  'gelu_pytorch_tanh': lambda: Config(activations.GELU, approximate=True),
  'relu': lambda: Config(activations.ReLU),
  'relu2': lambda: Config(activations.SquaredReLU),
  'silu': lambda: Config(activations.SiLU),
}


def activation(name: str) -> LayerTpl:
  """Returns the Config of an activation by its name in config.json.

  Raises:
    ValueError: The name is unknown.
  """
  if name not in _ACTIVATIONS:
    raise ValueError(
      f'the activation in config.json must be one of {sorted(_ACTIVATIONS)},'
      f' got {name!r}'
    )
  return _ACTIVATIONS[name]()
