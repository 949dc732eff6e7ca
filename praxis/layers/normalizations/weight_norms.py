# SPDX-License-Identifier: Apache-2.0
"""Weight normalization and spectral normalization."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import py_utils
from praxis.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)
from praxis.layers.normalizations.base import BaseNormalization


class WeightNormL2(BaseNormalization):
  """Scales each output of a kernel to the norm 1 + g, g a variable.

  References: https://arxiv.org/abs/1602.07868
  """

  def setup(self) -> None:
    super().setup()
    self._create_vector('g', 0.0, regularized=True)

  def __call__(
    self,
    inputs: Float[Array, '*K D'],
    paddings: Float[Array, '*K'] | None = None,
  ) -> Float[Array, '*K D']:
    """Returns the kernel `inputs`, normalized over all but the last axis."""
    axes = tuple(range(inputs.ndim - 1))
    return (1.0 + self.theta.g) * py_utils.l2_normalize(inputs, axes)


class SpectralNorm(BaseNormalization):
  """Divides a kernel by an estimate of its largest singular value.

  Power iteration estimates it. The vector is a variable, so one iteration per
  training step is enough.

  References: https://arxiv.org/abs/1802.05957
  """

  # Power iterations per step.
  n_power_iteration: int = 1

  def setup(self) -> None:
    super().setup()
    if self.n_power_iteration < 1:
      raise ValueError(
        f'n_power_iteration must be at least 1, got {self.n_power_iteration}'
      )
    vector = WeightHParams(
      shape=[self.dim],
      init=WeightInit.Gaussian(),
      collections=[WeightHParamsCollection.REQUIRES_MEAN_SYNC],
    )
    self.create_variable('u', vector, trainable=False)

  def __call__(
    self,
    inputs: Float[Array, '*K D'],
    paddings: Float[Array, '*K'] | None = None,
  ) -> Float[Array, '*K D']:
    """Returns `inputs` over its spectral norm as a matrix [-1, D]."""
    kernel = inputs.reshape(-1, self.dim).astype(jnp.float32)
    right = self.get_var('u').astype(jnp.float32)
    matrix = jax.lax.stop_gradient(kernel)
    for _ in range(self.n_power_iteration):
      left = py_utils.l2_normalize(matrix @ right)
      right = py_utils.l2_normalize(left @ matrix)
    if not self.do_eval:
      self.update_var('u', right.astype(self.dtype))
    return self._cast_to_fprop_dtype(inputs / (left @ kernel @ right))
