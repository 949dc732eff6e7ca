# SPDX-License-Identifier: Apache-2.0
"""S4D: one diagonal state space model per channel (arXiv:2206.11893)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from praxis import base_layer, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.ssm import hippo, s4d_kernels

_STATE_NAME = 'ssm_state'


class SSM(base_layer.BaseLayer):
  """S4D: a diagonal state space model of each channel.

  Decoding starts from a zero state. By default the forward pass on the prompt
  does not store its last state, so the prompt is decoded by `extend_step`
  (fprop_for_prefix=False).

  References: https://arxiv.org/abs/2206.11893
  """

  # State dimension per channel, N.
  nheads: int = 0
  # Number of channels of inputs and outputs, D.
  dim: int = 0
  # Maximum sequence length.
  l_max: int = 0
  # Number of decoded samples per example.
  decode_num_samples: int = 0
  # Step size Δ of the discretization.
  step_size: float = 0.01
  # Diagonal of A, which is not learned: 'ss4d-1d-legs' and 'ss4d-1d-lagt' are
  # the eigenvalues of the normal part of a HiPPO matrix, 'ss4d-1d' has equally
  # spaced imaginary parts.
  hippo_type: str = 'ss4d-1d'
  # Stores the state after the last step of the forward pass, including padded
  # steps, for `extend_step`. Sequence models cannot decode with it, since they
  # repeat the prompt or its last token in `extend_step`.
  continues_from_forward: bool = False

  def setup(self) -> None:
    self._check_settings()
    split = self.weight_split_dims_mapping.wt
    self._create('D', [1, self.dim], WeightInit.Constant(1.0), split)
    self.amat, self.cmat = self.init_s4d_ac(self.nheads)

  def init_s4d_ac(
    self, nh: int, suffix: str = ''
  ) -> tuple[Complex[Array, 'N D'], Complex[Array, 'N D']]:
    """Creates C with `nh` states per channel; returns the diagonal A, and C."""
    names = [f'C_re{suffix}', f'C_im{suffix}']
    for name in names:
      split = self.weight_split_dims_mapping.wt
      init = WeightInit.Gaussian(0.5**0.5)
      self._create(name, [nh, self.dim], init, split)
    a = jnp.tile(self._eigenvalues(nh)[:, None], [1, self.dim])
    return a, self._complex(*names)

  def init_states(self, batch_size: int) -> None:
    """Sets the decode state of `batch_size` examples to zero."""
    shape = (batch_size, *self._state_shape())
    self.update_decode_state(_STATE_NAME, jnp.zeros(shape, jnp.complex64))

  def __call__(self, inputs: Float[Array, 'B L D']) -> Float[Array, 'B L D']:
    """Returns the outputs of all steps and initializes the decode state.

    Raises:
      ValueError: the inputs are longer than `l_max`.
    """
    batch, length = inputs.shape[:2]
    if length > self.l_max:
      raise ValueError(
        f'inputs of {type(self).__name__} {self.name!r} must be at most l_max='
        f'{self.l_max} long, got {length}; increase l_max'
      )
    self.init_states(batch * self.decode_num_samples)
    if self.continues_from_forward:
      self._store_last_state(inputs)
    return self._forward_pass(inputs).astype(inputs.dtype)

  def extend_step(
    self, inputs: Float[Array, 'B *L D']
  ) -> Float[Array, 'B *L D']:
    """Returns the outputs of the next step, or of the next L steps.

    Raises:
      ValueError: the decode state has another batch size than the inputs.
    """
    batch = inputs.shape[0]
    if not self.has_variable(base_layer.DECODE_CACHE, _STATE_NAME):
      self.init_states(batch)
    state = self.get_decode_state(_STATE_NAME)
    if state.shape[0] != batch:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} has decode states of '
        f'{state.shape[0]} examples, got inputs of {batch}; set '
        'decode_num_samples to the number of samples per example, got '
        f'{self.decode_num_samples}'
      )
    if inputs.ndim == 2:
      state, outputs = self._step(state, inputs)
    else:
      time_major = jnp.moveaxis(inputs, 1, 0)
      state, outputs = jax.lax.scan(self._step, state, time_major)
      outputs = jnp.moveaxis(outputs, 0, 1)
    self.update_decode_state(_STATE_NAME, state)
    return outputs.astype(inputs.dtype)

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Checks that decoding starts from a zero state.

    See `decode_states.check_decoding`.

    Raises:
      ValueError: the forward pass on the prompt would set the state.
    """
    del sequential
    unsupported = {
      'fprop_for_prefix': prefill,
      f'continues_from_forward of {self.name!r}': self.continues_from_forward,
    }
    for name, is_set in unsupported.items():
      if is_set:
        raise ValueError(
          f'{name} must be False to decode with {type(self).__name__}, which '
          'decodes the prompt step by step from a zero state, got True; set it '
          'to False, and seqlen to the length of prompt and continuation'
        )

  def transform_decode_state(
    self, transform_fn: Callable[[jax.Array, int, int], jax.Array]
  ) -> None:
    """Replaces the state by transform_fn(state, batch_dim=0, time_dim=-1).

    The state is allocated for all samples, so with decode_num_samples > 1 a
    transform that repeats examples is skipped.
    """
    state = self.get_decode_state(_STATE_NAME)
    new_state = transform_fn(state, 0, -1)
    if self.decode_num_samples <= 1 or new_state.shape[0] <= state.shape[0]:
      self.update_decode_state(_STATE_NAME, new_state)

  def _store_last_state(self, inputs: Float[Array, 'B L D']) -> None:
    """Stores the state after the last step, repeated for each sample."""
    if self.is_mutable_collection(base_layer.DECODE_CACHE):
      state = self._last_state(inputs).astype(jnp.complex64)
      samples = jnp.repeat(state, self.decode_num_samples, axis=0)
      self.update_decode_state(_STATE_NAME, samples)

  def _last_state(
    self, inputs: Float[Array, 'B L D']
  ) -> Complex[Array, 'B N D']:
    """Returns the state after the last step: a sum of decayed inputs."""
    ones = jnp.ones(self.amat.shape)
    _, b = s4d_kernels.s4d_discretize(self.amat, ones, self._step_sizes())
    lags = jnp.arange(inputs.shape[1])[::-1, None, None]
    decays = jnp.exp(lags * self._step_sizes() * self.amat)
    return b * jnp.einsum('bld,lnd->bnd', inputs, decays)

  def _forward_pass(
    self, inputs: Float[Array, 'B L D']
  ) -> Float[Array, 'B L D']:
    """Returns the outputs of all steps, computed in parallel."""
    times = jnp.arange(inputs.shape[1])
    kernel = s4d_kernels.s4d_kernel_zoh(
      self.cmat, self.amat, times, self._step_sizes()
    )
    return (
      s4d_kernels.causal_convolution(inputs, kernel)
      + self.get_var('D') * inputs
    )

  def _step(
    self, state: Complex[Array, 'B N D'], inputs: Float[Array, 'B D']
  ) -> tuple[Complex[Array, 'B N D'], Float[Array, 'B D']]:
    ones = jnp.ones(self.amat.shape)
    a, b = s4d_kernels.s4d_discretize(self.amat, ones, self._step_sizes())
    state, outputs = s4d_kernels.s4d_step(a, b, self.cmat, inputs, state)
    return state, outputs + self.get_var('D') * inputs

  def _step_sizes(self) -> Float[Array, '1 D']:
    return jnp.full([1, self.dim], self.step_size, jnp.float32)

  def _state_shape(self) -> tuple[int, ...]:
    """Returns the shape of the state of one example."""
    return (self.nheads, self.dim)

  def _eigenvalues(self, n: int) -> Complex[Array, ' N']:
    """Returns the diagonal of A."""
    for suffix, hippo_kind in (('legs', 'LegS'), ('lagt', 'LagT')):
      if self.hippo_type.endswith(suffix):
        return jnp.asarray(
          hippo.make_dplr_hippo(n, hippo_kind)[0], jnp.complex64
        )
    imag = np.pi * (n - 1) * (np.arange(n) / n - 0.5)
    return jnp.asarray(-0.5 + 1j * imag, jnp.complex64)

  def _complex(self, real: str, imag: str) -> Complex[Array, '*shape']:
    """Returns a complex matrix from the variables of its two parts.

    The variables are read without a cast to `fprop_dtype`.
    """
    return self.get_var(real) + 1j * self.get_var(imag)

  def _create(
    self,
    name: str,
    shape: Sequence[int],
    init: WeightInit,
    split: pytypes.SplitDimsMapping,
  ) -> None:
    hparams = WeightHParams(
      shape=shape,
      init=init,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
    )
    self.create_variable(name, hparams)

  def _check_settings(self) -> None:
    layer = f'{type(self).__name__} {self.name!r}'
    sizes = (self.nheads, self.dim, self.l_max, self.step_size)
    if min(sizes) <= 0:
      raise ValueError(
        f'{layer} needs nheads, dim, l_max and step_size > 0, got {sizes}'
      )
    if not self.hippo_type.endswith(('-legs', '-lagt', '-1d')):
      raise ValueError(
        f"hippo_type of {layer} must be 'ss4d-1d', 'ss4d-1d-legs' or "
        f"'ss4d-1d-lagt', got {self.hippo_type!r}"
      )
