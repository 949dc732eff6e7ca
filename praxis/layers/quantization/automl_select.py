# SPDX-License-Identifier: Apache-2.0
"""One layer of several, chosen by a variable that a search sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class BaseAutoMLSelect(base_layer.BaseLayer):
  """Has several layers, `decision` (an index), and a number for each."""

  # What is chosen from; inputs and outputs have the same shapes.
  search_options_tpl: Sequence[LayerTpl] | None = pax_fiddle.template_field(
    None
  )

  def setup(self) -> None:
    if not self.search_options_tpl:
      raise ValueError(
        'search_options_tpl must have one template or more, got '
        f'{self.search_options_tpl}'
      )
    self.create_children('search_options', self.search_options_tpl)
    for name, shape, dtype in (
      ('decision', [], jnp.uint8),
      ('rl_variables', [len(self.search_options_tpl)], jnp.float32),
    ):
      hparams = WeightHParams(
        shape=shape,
        init=WeightInit.Constant(0),
        dtype=dtype,
        mesh_shape=self.mesh_shape,
      )
      self.create_variable(name, hparams, trainable=False)


class AutoMLSelect(BaseAutoMLSelect):
  """A quantiser that is one of several; see `TensorQuantizer.quantize`."""

  # For products of quantised operands: each quantiser has its own.
  sub_channels = None

  def __call__(
    self,
    x: Float[Array, '*shape'],
    contract_dims: int | Sequence[int],
    squeeze_scale: bool = True,
    quantized_dtype: Any = None,
  ) -> tuple[
    Shaped[Array, '*shape'], Shaped[Array, '...'], Shaped[Array, '...'] | None
  ]:
    """Returns what the chosen quantiser does."""

    def branch(i: int) -> Callable[..., Any]:
      return lambda layer, x: layer.search_options[i].quantize(
        x, contract_dims, squeeze_scale, quantized_dtype
      )

    branches = [branch(i) for i in range(len(self.search_options))]
    return nn.switch(self.get_var('decision'), branches, self, x)

  def quantize(
    self,
    x: Float[Array, '*shape'],
    contract_dims: int | Sequence[int],
    squeeze_scale: bool = True,
    quantized_dtype: Any = None,
  ) -> tuple[Array, Array, Array | None]:
    """Does what `__call__` does."""
    return self(x, contract_dims, squeeze_scale, quantized_dtype)

  @property
  def precision(self) -> int | None:
    """Bits of the first quantiser; whether there are any is what counts."""
    return self.search_options_tpl[0].precision
