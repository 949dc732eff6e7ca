# SPDX-License-Identifier: Apache-2.0
"""S5: one state space model of all channels (arXiv:2208.04933)."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from praxis import pytypes
from praxis.base_layer import WeightInit
from praxis.layers.ssm import s5_kernels
from praxis.layers.ssm.s4d import SSM


class S5(SSM):
  """S5: a multi-input, multi-output diagonal state space model.

  References: https://arxiv.org/abs/2208.04933
  """

  # Uses the learned input matrix B, as in the paper. If False, B is all ones,
  # as in Praxis, which declares B without using it.
  uses_input_matrix: bool = False

  def setup(self) -> None:
    self._check_settings()
    split = self.weight_split_dims_mapping.wt
    self._create(
      'D', [self.dim], WeightInit.Constant(1.0), split and split[-1:]
    )
    self.amat, self.bmat, self.cmat = self.init_s5_abc(self.nheads)

  def init_s5_abc(
    self, nh: int, suffix: str = ''
  ) -> tuple[
    Complex[Array, ' N'], Complex[Array, 'N D'], Complex[Array, 'D N']
  ]:
    """Creates B and C with `nh` states; returns the diagonal A, B and C."""
    split = self.weight_split_dims_mapping.wt
    b = self._create_complex('B', suffix, [nh, self.dim], split)
    c = self._create_complex('C', suffix, [self.dim, nh], split and split[::-1])
    return self._eigenvalues(nh), b, c

  def _create_complex(
    self,
    name: str,
    suffix: str,
    shape: Sequence[int],
    split: pytypes.SplitDimsMapping,
  ) -> Complex[Array, '*shape']:
    """Creates the variables of a matrix with variance 1 / shape[1] per part."""
    names = [f'{name}_re{suffix}', f'{name}_im{suffix}']
    for part_name in names:
      init = WeightInit.Gaussian(shape[1] ** -0.5)
      self._create(part_name, shape, init, split)
    return self._complex(*names)

  def _forward_pass(
    self, inputs: Float[Array, 'B L D']
  ) -> Float[Array, 'B L D']:
    params = (*self._discretize(), self.cmat, self.get_var('D'))
    return s5_kernels.s5_parallel_scan(params, inputs)

  def _last_state(self, inputs: Float[Array, 'B L D']) -> Complex[Array, 'B N']:
    _, b = self._discretize()
    lags = jnp.arange(inputs.shape[1])[::-1, None]
    decays = jnp.exp(lags * self.step_size * self.amat)
    return jnp.einsum('bld,nd,ln->bn', inputs, b, decays)

  def _step(
    self, state: Complex[Array, 'B N'], inputs: Float[Array, 'B D']
  ) -> tuple[Complex[Array, 'B N'], Float[Array, 'B D']]:
    state, outputs = s5_kernels.s5_step(
      *self._discretize(), self.cmat, inputs, state
    )
    return state, outputs + self.get_var('D') * inputs

  def _discretize(self) -> tuple[Complex[Array, ' N'], Complex[Array, 'N D']]:
    """Returns the discretized A and B."""
    b = self.bmat if self.uses_input_matrix else jnp.ones(self.bmat.shape)
    return s5_kernels.s5_discretize(self.amat, b, self.step_size)

  def _state_shape(self) -> tuple[int, ...]:
    return (self.nheads,)
