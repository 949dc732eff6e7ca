# SPDX-License-Identifier: Apache-2.0
"""A layer that is one of several, as a search decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.pytypes import NestedJTensor

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class AutoMLSelect(base_layer.BaseLayer):
  """Calls the layer that the non-trainable variable `decision` numbers.

  A search writes that variable (0 at first); every choice has its weights.
  """

  # The choices: layers that take and return the same shapes.
  search_options_tpl: Sequence[LayerTpl] | None = pax_fiddle.template_field(
    None
  )

  def setup(self) -> None:
    if not self.search_options_tpl:
      raise AttributeError('Must set at least one search option.')
    self.create_children('search_options', self.search_options_tpl)
    self.create_variable(
      'decision',
      WeightHParams(shape=[], init=WeightInit.Constant(0), dtype=jnp.uint8),
      trainable=False,
    )

  def __call__(
    self, x: Shaped[Array, '...'], *args: Any, **kwargs: Any
  ) -> NestedJTensor:
    """Returns what the chosen layer returns of the arguments."""
    choices = range(len(self.search_options_tpl))
    branches = [
      lambda layer, i=i: layer.search_options[i](x, *args, **kwargs)
      for i in choices
    ]
    if self.is_initializing():
      # A switch would make only the weights of the choice that it takes.
      return [branch(self) for branch in branches][0]
    return nn.switch(self.get_var('decision'), branches, self)
