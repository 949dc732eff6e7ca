# SPDX-License-Identifier: Apache-2.0
"""Products and look-ups as layers, so that quantised twins can replace them."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from praxis import base_layer


class EinsumOp(base_layer.BaseLayer):
  """`jnp.einsum`, as a layer: what products with weights go through."""

  def __call__(
    self, equation: str, *args: Shaped[Array, '...']
  ) -> Shaped[Array, '...']:
    return jnp.einsum(equation, *args)


class EinsumGatedOp(base_layer.BaseLayer):
  """Two products of one input with two kernels, for gated feed-forwards."""

  def __call__(
    self,
    equation: str,
    inputs: Shaped[Array, '...'],
    kernel: Shaped[Array, '...'],
    gate_kernel: Shaped[Array, '...'],
  ) -> tuple[Shaped[Array, '...'], Shaped[Array, '...']]:
    """Returns the product with `kernel` and that with `gate_kernel`."""
    return (
      jnp.einsum(equation, inputs, kernel),
      jnp.einsum(equation, inputs, gate_kernel),
    )


class ArrayLookup(base_layer.BaseLayer):
  """Rows of a table; what embeddings do their gather with."""

  def __call__(
    self, x: Shaped[Array, 'V *rest'], idx: Int[Array, '*shape']
  ) -> Shaped[Array, '*shape *rest']:
    return x[idx]
