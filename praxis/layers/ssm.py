# SPDX-License-Identifier: Apache-2.0
"""State space models: linear recurrences, also computed in parallel.

A model in continuous time, x' = A x + B u, y = Re(C x) + D u with a diagonal
A, is sampled in steps of `step_size`, the input constant in between.

References: S4, https://arxiv.org/abs/2111.00396; S4D, its diagonal version,
https://arxiv.org/abs/2206.11893; S5, https://arxiv.org/abs/2208.04933
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Inexact, Num

from praxis import base_layer, pytypes
from praxis.base_layer import WeightHParams, WeightInit

_STATE = 'ssm_state'
_Matrix = Float[np.ndarray, 'N N']
_Vector = Float[np.ndarray, 'N']


class SSM(base_layer.BaseLayer):
  """S4D: each channel has states of its own, which see that channel only.

  Decoding goes step by step, from a state of 0: the forward pass on the prompt
  leaves none behind, so that prompts are to be read by `extend_step`, too
  (fprop_for_prefix=False).
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
    """Returns the outputs of all steps, by a convolution; resets the state."""
    batch, length = inputs.shape[:2]
    if length > self.l_max:
      raise ValueError(
        f'inputs of {type(self).__name__} {self.name!r} must be at most l_max='
        f'{self.l_max} long, got {length}; raise l_max'
      )
    self.init_states(batch * self.decode_num_samples)
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

  def _parallel(self, inputs: Float[Array, 'B L D']) -> Float[Array, 'B L D']:
    times = jnp.arange(inputs.shape[1])
    kernel = s4d_kernel_zoh(self.cmat, self.amat, times, self._step_sizes())
    return causal_convolution(inputs, kernel) + self.get_var('D') * inputs

  def _step(
    self, state: Complex[Array, 'B N D'], inputs: Float[Array, 'B D']
  ) -> tuple[Complex[Array, 'B N D'], Float[Array, 'B D']]:
    ones = jnp.ones(self.amat.shape)
    a, b = s4d_discretize(self.amat, ones, self._step_sizes())
    state, outputs = s4d_step(a, b, self.cmat, inputs, state)
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
        return jnp.asarray(make_dplr_hippo(n, kind)[0], jnp.complex64)
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
    return s5_parallel_scan(params, inputs)

  def _step(
    self, state: Complex[Array, 'B N'], inputs: Float[Array, 'B D']
  ) -> tuple[Complex[Array, 'B N'], Float[Array, 'B D']]:
    state, outputs = s5_step(*self._discrete(), self.cmat, inputs, state)
    return state, outputs + self.get_var('D') * inputs

  def _discrete(self) -> tuple[Complex[Array, 'N'], Complex[Array, 'N D']]:
    b = self.bmat if self.uses_input_matrix else jnp.ones(self.bmat.shape)
    return s5_discretize(self.amat, b, self.step_size)

  def _state_shape(self) -> tuple[int, ...]:
    return (self.nheads,)


# HiPPO matrices, in double precision: they are constants.


def make_hippo(n: int, hippo_type: str) -> _Matrix:
  """Returns the HiPPO matrix A, of 'LegS' or 'LagT'."""
  _check_hippo_type(hippo_type)
  if hippo_type == 'LagT':
    return -np.tril(np.ones([n, n]))
  roots = np.sqrt(1 + 2 * np.arange(n))
  return np.diag(np.arange(n, dtype=np.float64)) - np.tril(
    np.outer(roots, roots)
  )


def make_nplr_hippo(
  n: int, hippo_type: str
) -> tuple[_Matrix, _Vector, _Vector]:
  """Returns A, the P for which A + P Pᵀ is normal, and B."""
  a = make_hippo(n, hippo_type)
  if hippo_type == 'LagT':
    return a, np.full(n, 0.5**0.5), np.ones(n)
  return a, np.sqrt(np.arange(n) + 0.5), np.sqrt(2 * np.arange(n) + 1.0)


def make_dplr_hippo(
  n: int, hippo_type: str
) -> tuple[
  Complex[np.ndarray, 'N'],
  Complex[np.ndarray, 'N'],
  Complex[np.ndarray, 'N'],
  Complex[np.ndarray, 'N N'],
]:
  """Returns the eigenvalues of A + P Pᵀ, P and B in their base, the vectors.

  The eigenvalues of LagT are scaled: their imaginary parts by n.
  """
  a, p, b = make_nplr_hippo(n, hippo_type)
  normal = a + np.outer(p, p)
  # All of the diagonal is the same; the rest is skew symmetric.
  real = np.full(n, np.mean(np.diagonal(normal)))
  imag, vectors = np.linalg.eigh(normal * -1j)
  if hippo_type == 'LagT':
    imag = imag * n
  to_base = vectors.conj().T
  return real + 1j * imag, to_base @ p, to_base @ b, vectors


def _check_hippo_type(hippo_type: str) -> None:
  if hippo_type not in ('LegS', 'LagT'):
    raise ValueError(f"hippo_type must be 'LegS' or 'LagT', got {hippo_type!r}")


# S4D.


def causal_convolution(
  u: Float[Array, 'B L D'], ker: Float[Array, 'K D']
) -> Float[Array, 'B L D']:
  """Returns sums over the past of inputs times `ker`, in float32, by FFT."""
  length = u.shape[-2]
  if ker.shape[-2] < length:
    raise ValueError(
      f'ker must be at least as long as u, {length}, got {ker.shape[-2]}'
    )
  # Twice as long: nothing wraps around.
  transform = lambda x: jnp.fft.rfft(
    x.astype(jnp.float32), n=2 * length, axis=-2
  )
  product = transform(u) * transform(ker[:length])
  return jnp.fft.irfft(product, n=2 * length, axis=-2)[:, :length]


def s4d_discretize(
  a: Complex[Array, 'N D'], b: Inexact[Array, 'N D'], step: Float[Array, '1 D']
) -> tuple[Complex[Array, 'N D'], Complex[Array, 'N D']]:
  """Returns A and B of the recurrence."""
  abar = jnp.exp(step * a)
  return abar, (abar - 1) / a * b


def s4d_kernel_zoh(
  c: Complex[Array, 'N D'],
  a: Complex[Array, 'N D'],
  l: Num[Array, 'L'],  # noqa: E741
  step: Float[Array, '1 D'],
) -> Float[Array, 'L D']:
  """Returns what inputs, `l` steps ago, add to the output; B is all ones."""
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
  """Returns state and output after input `u_k` in state `x_k_1`."""
  x_k = ab * x_k_1 + bb * u_k[:, None, :]
  return x_k, jnp.sum(cb * x_k, axis=1).real


# S5.


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
