# SPDX-License-Identifier: Apache-2.0
"""Einsum and array lookup as layers, so that quantization can replace them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)

_GRADIENTS_AT_ONCE = contextvars.ContextVar('gradients_at_once', default=False)


@contextlib.contextmanager
def gradients_at_once() -> Iterator[None]:
  """Context in which operations compute all operand gradients together.

  XLA may schedule the gradient of a weight late, as nothing depends on it, and
  keep its inputs alive until then. For logits these are among the largest
  arrays of a step: 2 of 23 GiB of a model with 22B parameters.
  """
  token = _GRADIENTS_AT_ONCE.set(True)
  try:
    yield
  finally:
    _GRADIENTS_AT_ONCE.reset(token)


def operands(*args: Shaped[Array, '...']) -> tuple[Array, ...]:
  """Returns the operands of an operation, tied within `gradients_at_once`.

  The gradients of tied operands pass one optimization barrier.
  """
  return _tied(*args) if _GRADIENTS_AT_ONCE.get() else args


@jax.custom_vjp
def _tied(*args: Array) -> tuple[Array, ...]:
  return args


def _tied_forward(*args: Array) -> tuple[tuple[Array, ...], None]:
  return args, None


def _tied_backward(_: None, gradients: tuple[Array, ...]) -> tuple[Array, ...]:
  return jax.lax.optimization_barrier(gradients)


_tied.defvjp(_tied_forward, _tied_backward)


class EinsumOp(base_layer.BaseLayer):
  """`jnp.einsum` as a layer, used for products with weights."""

  def __call__(
    self, equation: str, *args: Shaped[Array, '...']
  ) -> Shaped[Array, '...']:
    return jnp.einsum(equation, *operands(*args))


class EinsumGatedOp(base_layer.BaseLayer):
  """Two einsums of one input, for gated feed-forward layers."""

  def __call__(
    self,
    equation: str,
    inputs: Shaped[Array, '...'],
    kernel: Shaped[Array, '...'],
    gate_kernel: Shaped[Array, '...'],
  ) -> tuple[Shaped[Array, '...'], Shaped[Array, '...']]:
    """Returns the products with `kernel` and with `gate_kernel`.

    Args:
      equation: of both einsums.
      inputs: the first operand of both.
      kernel: the second operand of the first einsum.
      gate_kernel: the second operand of the second einsum.
    """
    return (
      jnp.einsum(equation, inputs, kernel),
      jnp.einsum(equation, inputs, gate_kernel),
    )


class ArrayLookup(base_layer.BaseLayer):
  """Gathers rows of a table; used by embeddings."""

  def __call__(
    self, x: Shaped[Array, ' V *rest'], idx: Int[Array, '*shape']
  ) -> Shaped[Array, '*shape *rest']:
    return base_layer.gather_rows(x, idx)
