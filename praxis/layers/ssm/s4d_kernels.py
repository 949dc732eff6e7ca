# SPDX-License-Identifier: Apache-2.0
"""Discretization, step and convolution of S4D (arXiv:2206.11893)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact, Num


def causal_convolution(
  u: Float[Array, 'B L D'], ker: Float[Array, 'K D']
) -> Float[Array, 'B L D']:
  """Returns the causal convolution of `u` and `ker` over time, by FFT.

  Args:
    u: inputs; computed in float32.
    ker: kernel over time lags, K >= L.

  Raises:
    ValueError: the kernel is shorter than the inputs.
  """
  length = u.shape[-2]
  if ker.shape[-2] < length:
    raise ValueError(
      f'ker must be at least as long as u, {length}, got {ker.shape[-2]}'
    )
  # Zero padding to 2 L makes the circular convolution linear.
  transform = lambda x: jnp.fft.rfft(
    x.astype(jnp.float32), n=2 * length, axis=-2
  )
  product = transform(u) * transform(ker[:length])
  return jnp.fft.irfft(product, n=2 * length, axis=-2)[:, :length]


def s4d_discretize(
  a: Complex[Array, 'N D'], b: Inexact[Array, 'N D'], step: Float[Array, '1 D']
) -> tuple[Complex[Array, 'N D'], Complex[Array, 'N D']]:
  """Returns A and B discretized by zero-order hold."""
  abar = jnp.exp(step * a)
  return abar, (abar - 1) / a * b


def s4d_kernel_zoh(
  c: Complex[Array, 'N D'],
  a: Complex[Array, 'N D'],
  l: Num[Array, ' L'],  # noqa: E741
  step: Float[Array, '1 D'],
) -> Float[Array, 'L D']:
  """Returns the convolution kernel of the zero-order hold at lags `l`.

  Args:
    c: output matrix.
    a: diagonal of A; B is all ones.
    l: time lags in steps.
    step: step size Δ of each channel.
  """
  weights = c * (jnp.exp(step * a) - 1) / a
  decays = jnp.exp(l[:, None, None] * step * a)
  return jnp.sum(weights * decays, axis=1).real


def s4d_step(
  ab: Complex[Array, 'N D'],
  bb: Complex[Array, 'N D'],
  cb: Complex[Array, 'N D'],
  u_k: Float[Array, 'B D'],
  x_k_1: Complex[Array, 'B N D'],
) -> tuple[Complex[Array, 'B N D'], Float[Array, 'B D']]:
  """Returns the next state x_k and the output y_k.

  Args:
    ab: discretized A.
    bb: discretized B.
    cb: output matrix C.
    u_k: input of the step.
    x_k_1: previous state.
  """
  x_k = ab * x_k_1 + bb * u_k[:, None, :]
  return x_k, jnp.sum(cb * x_k, axis=1).real
