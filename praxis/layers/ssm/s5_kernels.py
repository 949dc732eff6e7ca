# SPDX-License-Identifier: Apache-2.0
"""Discretization, step and parallel scan of S5 (arXiv:2208.04933)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact


def s5_discretize(
  a: Complex[Array, ' N'], b: Inexact[Array, 'N D'], step: float
) -> tuple[Complex[Array, ' N'], Complex[Array, 'N D']]:
  """Returns A and B discretized by zero-order hold."""
  abar = jnp.exp(step * a)
  return abar, ((abar - 1) / a)[:, None] * b


def binary_operator(
  element_i: tuple[Array, Array], element_j: tuple[Array, Array]
) -> tuple[Array, Array]:
  """Composes the affine maps x -> a x + b of step i, then step j.

  The operator is associative, as `jax.lax.associative_scan` requires.
  """
  a_i, bu_i = element_i
  a_j, bu_j = element_j
  return a_j * a_i, a_j * bu_i + bu_j


def s5_parallel_scan(
  params: tuple[
    Complex[Array, ' N'],
    Complex[Array, 'N D'],
    Complex[Array, 'D N'],
    Float[Array, ' D'],
  ],
  input_sequence: Float[Array, 'B L D'],
) -> Float[Array, 'B L D']:
  """Returns the outputs of all steps by an associative scan.

  Args:
    params: discretized A and B, and C and D.
    input_sequence: inputs.
  """
  a, b, c, d = params
  bu = input_sequence @ b.T
  decays = jnp.broadcast_to(a, bu.shape)
  _, states = jax.lax.associative_scan(binary_operator, (decays, bu), axis=1)
  return (states @ c.T).real + d * input_sequence


def s5_step(
  ab: Complex[Array, ' N'],
  bb: Complex[Array, 'N D'],
  cb: Complex[Array, 'D N'],
  u_k: Float[Array, 'B D'],
  x_k_1: Complex[Array, 'B N'],
) -> tuple[Complex[Array, 'B N'], Float[Array, 'B D']]:
  """Returns the next state x_k and the output y_k.

  Args:
    ab: discretized A.
    bb: discretized B.
    cb: output matrix C.
    u_k: input of the step.
    x_k_1: previous state.
  """
  x_k = ab * x_k_1 + u_k @ bb.T
  return x_k, (x_k @ cb.T).real
