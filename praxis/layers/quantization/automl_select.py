# SPDX-License-Identifier: Apache-2.0
"""Quantizer choice for architecture search, with reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.alias_names import module_getattr
from praxis.layers import searchable

__getattr__ = module_getattr(__name__)


class BaseAutoMLSelect(searchable.AutoMLSelect):
  """A layer choice with a reinforcement learning variable per option."""

  def setup(self) -> None:
    super().setup()
    num_options = len(self.search_options_tpl or ())
    self._create_search_variable('rl_variables', [num_options], jnp.float32)


class AutoMLSelect(BaseAutoMLSelect):
  """A choice between quantizers, with the interface of `TensorQuantizer`."""

  # Read by aqt_einsum; the options have their own.
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
    """Returns `TensorQuantizer.quantize` of the selected quantizer."""
    return self._call_selected(
      lambda quantizer: quantizer.quantize(
        x, contract_dims, squeeze_scale, quantized_dtype
      )
    )

  def quantize(
    self,
    x: Float[Array, '*shape'],
    contract_dims: int | Sequence[int],
    squeeze_scale: bool = True,
    quantized_dtype: Any = None,
  ) -> tuple[Array, Array, Array | None]:
    """Alias of `__call__`."""
    return self(x, contract_dims, squeeze_scale, quantized_dtype)

  @property
  def precision(self) -> int | None:
    """Bits of the first quantizer; callers only test it for None."""
    templates: Sequence[Any] = self.search_options_tpl or ()
    return templates[0].precision
