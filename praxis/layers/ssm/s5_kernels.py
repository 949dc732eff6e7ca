# SPDX-License-Identifier: Apache-2.0
"""A diagonal recurrence of all channels: its step, and its parallel scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact


def s5_discretize(
  a: Complex[Array, 'N'], b: Inexact[Array, 'N D'], step: float
) -> tuple[Complex[Array, 'N'], Complex[Array, 'N D']]:
  """Returns A and B of the recurrence."""
  abar = jnp.exp(step * a)
  return abar, ((abar - 1) / a)[:, None] * b


def binary_operator(
  element_i: tuple[Array, Array], element_j: tuple[Array, Array]
) -> tuple[Array, Array]:
  """Returns the step x -> a x + b that does step i, then step j."""
  a_i, bu_i = element_i
  a_j, bu_j = element_j
  return a_j * a_i, a_j * bu_i + bu_j


def s5_parallel_scan(
  params: tuple[
    Complex[Array, 'N'],
    Complex[Array, 'N D'],
    Complex[Array, 'D N'],
    Float[Array, 'D'],
  ],
  input_sequence: Float[Array, 'B L D'],
) -> Float[Array, 'B L D']:
  """Returns the outputs of a recurrence with matrices A, B, C and D."""
  a, b, c, d = params
  entering = input_sequence @ b.T
  decays = jnp.broadcast_to(a, entering.shape)
  _, states = jax.lax.associative_scan(
    binary_operator, (decays, entering), axis=1
  )
  return (states @ c.T).real + d * input_sequence


def s5_step(
  ab: Complex[Array, 'N'],
  bb: Complex[Array, 'N D'],
  cb: Complex[Array, 'D N'],
  u_k: Float[Array, 'B D'],
  x_k_1: Complex[Array, 'B N'],
) -> tuple[Complex[Array, 'B N'], Float[Array, 'B D']]:
  """Returns state and output after input `u_k` in state `x_k_1`."""
  x_k = ab * x_k_1 + u_k @ bb.T
  return x_k, (x_k @ cb.T).real
