# SPDX-License-Identifier: Apache-2.0
"""Layer choice for architecture search: one of several layers is active."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.pytypes import NestedJTensor

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class AutoMLSelect(base_layer.BaseLayer):
  """Calls the layer whose index is in the non-trainable variable `decision`.

  The search writes that variable, 0 at first. Every option has its weights.
  """

  # The options: layers with the same input and output shapes.
  search_options_tpl: Sequence[LayerTpl] | None = pax_fiddle.template_field(
    None
  )

  def setup(self) -> None:
    if not self.search_options_tpl:
      raise AttributeError(
        'Must set at least one search option: search_options_tpl of '
        f'{type(self).__name__} is {self.search_options_tpl}'
      )
    self.create_children('search_options', self.search_options_tpl)
    self._create_search_variable('decision', [], jnp.uint8)

  def __call__(
    self, x: Shaped[Array, '...'], *args: Any, **kwargs: Any
  ) -> NestedJTensor:
    """Returns the output of the selected layer."""
    return self._call_selected(lambda layer: layer(x, *args, **kwargs))

  def _call_selected(self, call: Callable[[base_layer.BaseLayer], Any]) -> Any:
    """Returns `call` of the selected layer; initializes all options."""
    branches = [
      lambda module, i=i: call(module.search_options[i])
      for i in range(len(self.search_options_tpl or ()))
    ]
    if self.is_initializing():
      # A switch would create only the weights of the selected option.
      return [branch(self) for branch in branches][0]
    return nn.switch(self.get_var('decision'), branches, self)

  @nn.nowrap
  def _create_search_variable(
    self, name: str, shape: Sequence[int], dtype: Any
  ) -> None:
    hparams = WeightHParams(
      shape=shape,
      init=WeightInit.Constant(0),
      dtype=dtype,
      mesh_shape=self.mesh_shape,
    )
    self.create_variable(name, hparams, trainable=False)
