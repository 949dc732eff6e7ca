# SPDX-License-Identifier: Apache-2.0
"""Products and look-ups as layers, so that quantised twins can replace them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from praxis import base_layer

_AT_ONCE = contextvars.ContextVar('gradients_at_once', default=False)


@contextlib.contextmanager
def gradients_at_once() -> Iterator[None]:
  """Operations within give the gradients of all their operands at once.

  A compiler may put off the gradient of a weight, which nothing waits for, and
  keep in memory meanwhile what it is computed from. Of logits that is among
  the largest arrays of a step: 2 of 23 GiB of a model with 22B parameters.
  """
  token = _AT_ONCE.set(True)
  try:
    yield
  finally:
    _AT_ONCE.reset(token)


def operands(*args: Shaped[Array, '...']) -> tuple[Array, ...]:
  """Returns what an operation takes; within `gradients_at_once`, tied."""
  return _tied(*args) if _AT_ONCE.get() else args


@jax.custom_vjp
def _tied(*args: Array) -> tuple[Array, ...]:
  return args


def _tied_forward(*args: Array) -> tuple[tuple[Array, ...], None]:
  return args, None


def _tied_backward(_: None, gradients: tuple[Array, ...]) -> tuple[Array, ...]:
  return jax.lax.optimization_barrier(gradients)


_tied.defvjp(_tied_forward, _tied_backward)


class EinsumOp(base_layer.BaseLayer):
  """`jnp.einsum`, as a layer: what products with weights go through."""

  def __call__(
    self, equation: str, *args: Shaped[Array, '...']
  ) -> Shaped[Array, '...']:
    return jnp.einsum(equation, *operands(*args))


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
