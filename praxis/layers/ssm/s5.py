# SPDX-License-Identifier: Apache-2.0
"""S5: one state space model of all channels."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from praxis.base_layer import WeightInit
from praxis.layers.ssm import s5_kernels
from praxis.layers.ssm.s4d import SSM


class S5(SSM):
  """S5: all channels share the states, which see all channels."""

  # Whether inputs enter the states by the learned matrix B, as in the paper;
  # or each channel alike, as in Praxis, whose S5 declares B without using it.
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
  ) -> tuple[Complex[Array, 'N'], Complex[Array, 'N D'], Complex[Array, 'D N']]:
    """Creates B and C with `nh` states; returns the diagonal A, B and C."""
    split = self.weight_split_dims_mapping.wt
    by_kind = {
      'B': ([nh, self.dim], split),
      'C': ([self.dim, nh], split and split[::-1]),
    }
    matrices = []
    for kind, (shape, mapping) in by_kind.items():
      names = [f'{kind}_re{suffix}', f'{kind}_im{suffix}']
      for name in names:
        init = WeightInit.Gaussian(shape[1] ** -0.5)
        self._create(name, shape, init, mapping)
      matrices.append(self._complex(*names))
    return self._eigenvalues(nh), matrices[0], matrices[1]

  def _parallel(self, inputs: Float[Array, 'B L D']) -> Float[Array, 'B L D']:
    params = (*self._discrete(), self.cmat, self.get_var('D'))
    return s5_kernels.s5_parallel_scan(params, inputs)

  def _last_state(self, inputs: Float[Array, 'B L D']) -> Complex[Array, 'B N']:
    _, b = self._discrete()
    ages = jnp.arange(inputs.shape[1])[::-1, None]
    decays = jnp.exp(ages * self.step_size * self.amat)
    return jnp.einsum('bld,nd,ln->bn', inputs, b, decays)

  def _step(
    self, state: Complex[Array, 'B N'], inputs: Float[Array, 'B D']
  ) -> tuple[Complex[Array, 'B N'], Float[Array, 'B D']]:
    state, outputs = s5_kernels.s5_step(
      *self._discrete(), self.cmat, inputs, state
    )
    return state, outputs + self.get_var('D') * inputs

  def _discrete(self) -> tuple[Complex[Array, 'N'], Complex[Array, 'N D']]:
    b = self.bmat if self.uses_input_matrix else jnp.ones(self.bmat.shape)
    return s5_kernels.s5_discretize(self.amat, b, self.step_size)

  def _state_shape(self) -> tuple[int, ...]:
    return (self.nheads,)
