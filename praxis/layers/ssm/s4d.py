# SPDX-License-Identifier: Apache-2.0
"""S4D: state space models of one channel each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from praxis import base_layer, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.ssm import hippo, s4d_kernels

_STATE = 'ssm_state'


class SSM(base_layer.BaseLayer):
  """S4D: each channel has states of its own, which see that channel only.

  Decoding goes step by step, from a state of 0: by default the forward pass on
  the prompt leaves none behind, so that prompts are to be read by
  `extend_step`, too (fprop_for_prefix=False).
  """

  # How many states a channel has.
  nheads: int = 0
  # How many channels there are: the size of the input and of the output.
  dim: int = 0
  # The longest sequence.
  l_max: int = 0
  # How many samples of each example are decoded.
  decode_num_samples: int = 0
  # The time between two inputs.
  step_size: float = 0.01
  # What A is, which is not learned: 'ss4d-1d-legs' or 'ss4d-1d-lagt', the
  # eigenvalues of a HiPPO matrix, or 'ss4d-1d', equally spaced ones.
  hippo_type: str = 'ss4d-1d'
  # Whether the forward pass leaves the state after its last step, padding or
  # not, for `extend_step` to go on from. Models, which read the prompt, or its
  # last token, again in steps, refuse to decode with it.
  continues_from_forward: bool = False

  def setup(self) -> None:
    self._check_settings()
    split = self.weight_split_dims_mapping.wt
    self._create('D', [1, self.dim], WeightInit.Constant(1.0), split)
    self.amat, self.cmat = self.init_s4d_ac(self.nheads)

  def init_s4d_ac(
    self, nh: int, suffix: str = ''
  ) -> tuple[Complex[Array, 'N D'], Complex[Array, 'N D']]:
    """Creates C with `nh` states a channel; returns the diagonal A, and C."""
    names = [f'C_re{suffix}', f'C_im{suffix}']
    for name in names:
      split = self.weight_split_dims_mapping.wt
      init = WeightInit.Gaussian(0.5**0.5)
      self._create(name, [nh, self.dim], init, split)
    a = jnp.tile(self._eigenvalues(nh)[:, None], [1, self.dim])
    return a, self._complex(*names)

  def init_states(self, batch_size: int) -> None:
    """Sets the decode state of `batch_size` examples to 0."""
    shape = (batch_size, *self._state_shape())
    self.update_decode_state(_STATE, jnp.zeros(shape, jnp.complex64))

  def __call__(self, inputs: Float[Array, 'B L D']) -> Float[Array, 'B L D']:
    """Returns the outputs of all steps, by a convolution; sets the state."""
    batch, length = inputs.shape[:2]
    if length > self.l_max:
      raise ValueError(
        f'inputs of {type(self).__name__} {self.name!r} must be at most l_max='
        f'{self.l_max} long, got {length}; raise l_max'
      )
    self.init_states(batch * self.decode_num_samples)
    if self.continues_from_forward:
      self._keep_last_state(inputs)
    return self._parallel(inputs).astype(inputs.dtype)

  def extend_step(
    self, inputs: Float[Array, 'B *L D']
  ) -> Float[Array, 'B *L D']:
    """Returns the outputs of the next step, or of the next L steps."""
    batch = inputs.shape[0]
    if not self.has_variable(base_layer.DECODE_CACHE, _STATE):
      self.init_states(batch)
    state = self.get_decode_state(_STATE)
    if state.shape[0] != batch:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} has decode states of '
        f'{state.shape[0]} examples, got inputs of {batch}; set '
        f'decode_num_samples, now {self.decode_num_samples}, to the number of '
        'samples of an example'
      )
    if inputs.ndim == 2:
      state, outputs = self._step(state, inputs)
    else:
      by_time = jnp.moveaxis(inputs, 1, 0)
      state, outputs = jax.lax.scan(self._step, state, by_time)
      outputs = jnp.moveaxis(outputs, 0, 1)
    self.update_decode_state(_STATE, state)
    return outputs.astype(inputs.dtype)

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Raises ValueError if the state at the first step would be wrong.

    See `decode_states.check_decoding`.
    """
    del sequential
    wanted = {'fprop_for_prefix': prefill}
    wanted[f'continues_from_forward of {self.name!r}'] = (
      self.continues_from_forward
    )
    for name, is_on in wanted.items():
      if is_on:
        raise ValueError(
          f'{name} must be False to decode with {type(self).__name__}, which '
          'reads a prompt step by step, from a state of 0, got True; set it to '
          'False, and seqlen to the length of prompt and continuation'
        )

  def transform_decode_state(
    self, transform_fn: Callable[[jax.Array, int, int], jax.Array]
  ) -> None:
    """Replaces the state by fn(state, batch_dim, -1), as it has no time.

    States have room for all samples from the start: where each example becomes
    several, and decode_num_samples says so, they stay as they are.
    """
    state = self.get_decode_state(_STATE)
    new = transform_fn(state, 0, -1)
    if self.decode_num_samples <= 1 or new.shape[0] <= state.shape[0]:
      self.update_decode_state(_STATE, new)

  def _keep_last_state(self, inputs: Float[Array, 'B L D']) -> None:
    """Sets the state, one for each sample, to that after the last step."""
    if self.is_mutable_collection(base_layer.DECODE_CACHE):
      state = self._last_state(inputs).astype(jnp.complex64)
      samples = jnp.repeat(state, self.decode_num_samples, axis=0)
      self.update_decode_state(_STATE, samples)

  def _last_state(
    self, inputs: Float[Array, 'B L D']
  ) -> Complex[Array, 'B N D']:
    """Returns the sum of the inputs, each decayed since it came."""
    ones = jnp.ones(self.amat.shape)
    _, b = s4d_kernels.s4d_discretize(self.amat, ones, self._step_sizes())
    ages = jnp.arange(inputs.shape[1])[::-1, None, None]
    decays = jnp.exp(ages * self._step_sizes() * self.amat)
    return b * jnp.einsum('bld,lnd->bnd', inputs, decays)

  def _parallel(self, inputs: Float[Array, 'B L D']) -> Float[Array, 'B L D']:
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
    """Returns the shape of one example's state."""
    return (self.nheads, self.dim)

  def _eigenvalues(self, n: int) -> Complex[Array, 'N']:
    """Returns the diagonal of A."""
    for ending, kind in (('legs', 'LegS'), ('lagt', 'LagT')):
      if self.hippo_type.endswith(ending):
        return jnp.asarray(hippo.make_dplr_hippo(n, kind)[0], jnp.complex64)
    imag = np.pi * (n - 1) * (np.arange(n) / n - 0.5)
    return jnp.asarray(-0.5 + 1j * imag, jnp.complex64)

  def _complex(self, real: str, imag: str) -> Complex[Array, '*shape']:
    """Returns a matrix of two variables, in the precision they have."""
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
    who = f'{type(self).__name__} {self.name!r}'
    sizes = (self.nheads, self.dim, self.l_max, self.step_size)
    if min(sizes) <= 0:
      raise ValueError(
        f'{who} needs nheads, dim, l_max and step_size > 0, got {sizes}'
      )
    if not self.hippo_type.endswith(('-legs', '-lagt', '-1d')):
      raise ValueError(
        f"{who} needs a hippo_type of 'ss4d-1d', 'ss4d-1d-legs' and "
        f"'ss4d-1d-lagt', got {self.hippo_type!r}"
      )
