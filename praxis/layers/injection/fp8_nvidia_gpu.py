# SPDX-License-Identifier: Apache-2.0
"""Products in fp8, for GPUs that have them; to be put in as `einsum_tpl`.

  linear_p.einsum_tpl = pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp)

Their variables are replaced by their "gradients" at every step: the learner
must know OVERWRITE_WITH_GRADIENT, as pax.learners do. Where an op runs several
times in a step, in a layer that is shared or in a pipeline, the largest number
of all counts; that is up to who differentiates, as pax.steps do for variables
flagged TAKE_LARGEST_GRADIENT. By jax.grad alone these would add up.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.injection import fp8_delayed_scaling
from praxis.layers.quantization.utils import einsum_equations

_FLAGS = base_layer.WeightHParamsCollection
_E4M3 = fp8_delayed_scaling.E4M3


class Fp8EinsumOp(base_layer.BaseLayer):
  """A product of two tensors in e4m3, with gradients in e5m2."""

  # How many steps' largest numbers make the scale of the next.
  amax_history_length: int = 1024
  # Whether operands go into the product as fp8. If not, they are rounded to
  # fp8 and restored; XLA finds the fp8 product in that, too.
  use_direct_quant: bool = True

  # The tensors that have a scale and a history.
  _TENSORS = ('input', 'kernel', 'output_grad')
  _SUFFIXES = ('',)

  def setup(self) -> None:
    if self.amax_history_length <= 0:
      raise ValueError(
        f'amax_history_length must be positive, got {self.amax_history_length}'
      )
    for suffix in self._SUFFIXES:
      for tensor in self._TENSORS:
        # Gated products have one input.
        if suffix and tensor == 'input':
          continue
        self._create(f'{tensor}_amax_history{suffix}', 0.0)
        self._create(f'{tensor}_scale{suffix}', 1.0)

  def __call__(self, equation: str, *args: Array) -> Shaped[Array, '...']:
    """Returns the product of inputs and kernel."""
    x, kernel = self._operands(args, 2)
    if not self.use_direct_quant:
      return self.quantized_einsum(equation, x, kernel, False)
    return self._dot(equation, self._quantized_input(x), kernel)

  def quantized_einsum(
    self, equation: str, x: Array, k: Array, return_quantized_x: bool
  ) -> Array | tuple[Array, Array]:
    """Returns the product of operands rounded to fp8, and perhaps those of x.

    Its gradient is rounded to fp8, too.
    """
    rounded = fp8_delayed_scaling.round_operand(x, self._meta('input'), _E4M3)
    product = self._rounded_product(equation, rounded, k)
    return (product, rounded) if return_quantized_x else product

  def _create(self, name: str, value: float) -> None:
    is_scale = value != 0.0
    hparams = WeightHParams(
      shape=[1 if is_scale else self.amax_history_length],
      init=WeightInit.Constant(value),
      dtype=jnp.float32,
      mesh_shape=self.mesh_shape,
      collections=[
        _FLAGS.OVERWRITE_WITH_GRADIENT,
        _FLAGS.TAKE_LARGEST_GRADIENT,
        _FLAGS.DISALLOW_BFLOAT16_CONVERSION,
      ],
    )
    self.create_variable(name, hparams)

  def _meta(self, tensor: str, suffix: str = '') -> fp8_delayed_scaling.Meta:
    return fp8_delayed_scaling.Meta(
      self._theta_value(f'{tensor}_scale{suffix}'),
      self._theta_value(f'{tensor}_amax_history{suffix}'),
    )

  def _operands(self, args: tuple[Array, ...], count: int) -> tuple[Array, ...]:
    """Returns the operands in the dtype to compute in."""
    dtype = jnp.dtype(self.fprop_dtype)
    if len(args) != count:
      raise ValueError(
        f'{type(self).__name__} multiplies {count} operands, got {len(args)}'
      )
    x, *kernels = args
    for kernel in kernels:
      if kernel.dtype != dtype:
        raise ValueError(
          f'the kernel must have fprop_dtype {dtype}, got {kernel.dtype}'
        )
    return (x.astype(dtype), *kernels)

  def _quantized_input(self, x: Array) -> fp8_delayed_scaling.Operand:
    quantize = fp8_delayed_scaling.quantize_operand
    return fp8_delayed_scaling.Operand(
      x, *quantize(x, self._meta('input'), _E4M3)
    )

  def _dot(
    self,
    equation: str,
    x: fp8_delayed_scaling.Operand,
    kernel: Array,
    suffix: str = '',
  ) -> Array:
    """Returns the product of the quantised input with a kernel."""
    meta = self._meta('kernel', suffix)
    quantized = fp8_delayed_scaling.quantize_operand(kernel, meta, _E4M3)
    return fp8_delayed_scaling.dot(
      _expanded(equation, x.value, kernel),
      x,
      fp8_delayed_scaling.Operand(kernel, *quantized),
      self._meta('output_grad', suffix),
    )

  def _rounded_product(
    self, equation: str, rounded: Array, kernel: Array, suffix: str = ''
  ) -> Array:
    """Returns the product of the rounded input with a kernel."""
    meta = self._meta('kernel', suffix)
    kernel = fp8_delayed_scaling.round_operand(kernel, meta, _E4M3)
    eqn = _expanded(equation, rounded, kernel)
    product = fp8_delayed_scaling.einsum(
      str(eqn), rounded, kernel, rounded.dtype
    )
    grad_meta = self._meta('output_grad', suffix)
    return fp8_delayed_scaling.round_gradient(product, grad_meta)


class Fp8EinsumGatedOp(Fp8EinsumOp):
  """Two such products of one input, for gated feed-forwards."""

  _SUFFIXES = ('', '_gated')

  def __call__(
    self, equation: str, *args: Array
  ) -> tuple[Shaped[Array, '...'], Shaped[Array, '...']]:
    """Returns the product with the kernel and that with the gate's."""
    x, kernel, gate = self._operands(args, 3)
    if not self.use_direct_quant:
      product, rounded = self.quantized_einsum(equation, x, kernel, True)
      gated = self._rounded_product(equation, rounded, gate, '_gated')
      return product, gated
    operand = self._quantized_input(x)
    return (
      self._dot(equation, operand, kernel),
      self._dot(equation, operand, gate, '_gated'),
    )


def _expanded(
  equation: str, x: Array, kernel: Array
) -> einsum_equations.Equation:
  return einsum_equations.Equation.parse(equation).expand(x.ndim, kernel.ndim)
