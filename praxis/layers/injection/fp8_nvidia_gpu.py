# SPDX-License-Identifier: Apache-2.0
"""fp8 einsum layers, to be injected as `einsum_tpl`.

  linear_p.einsum_tpl = pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp)

`TransformerLm.fp8_scaling` injects them into a whole language model.

Layers with delayed scaling scale a tensor by its amax history, the largest
absolute values of the last steps (`flax.linen.fp8_ops`). Every step replaces
scales and histories by their "gradients": the learner must support
OVERWRITE_WITH_GRADIENT, as pax.learners does. If a layer runs several times in
a step (shared layers, pipelines), the gradients of variables with
TAKE_LARGEST_GRADIENT must combine by maximum, as in pax.steps; jax.grad sums
them. Layers with current scaling have no variables.

References:
  FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, overload

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops
from jax import lax
from jaxtyping import Array, Float, Shaped

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import einsum_equations
from praxis.layers.injection import fp8_current_scaling

__getattr__ = module_getattr(__name__)

_FLAGS = base_layer.WeightHParamsCollection
_E4M3 = fp8_current_scaling.E4M3
_E5M2 = fp8_current_scaling.E5M2


def quantized_dot_config(
  compute_dtype: Any,
  q_lhs: Array,
  lhs_scale: Array,
  q_rhs: Array,
  rhs_scale: Array,
  out_grad_scale: Array,
  out_grad_amax_history: Array,
) -> Callable[[Callable[..., Any]], Callable[..., Array]]:
  """Returns a decorator that makes a function an fp8 `lax.dot_general`.

  The result is `flax.linen.fp8_ops.quantized_dot`, not divided by the scales;
  `fp8_ops.out_dq` does that. The body of the function is not used.

  Args:
    compute_dtype: dtype of the product, unless the call prefers another.
    q_lhs: the quantized left operand.
    lhs_scale: its scale.
    q_rhs: the quantized right operand.
    rhs_scale: its scale.
    out_grad_scale: the scale of the product's gradient.
    out_grad_amax_history: the history of its largest absolute values.
  """

  def decorator(function: Callable[..., Any]) -> Callable[..., Array]:
    del function

    def dot_general(
      lhs: Array,
      rhs: Array,
      dimension_numbers: Any,
      precision: Any = None,
      preferred_element_type: Any = None,
    ) -> Array:
      del precision  # fp8 products have one.
      return fp8_ops.quantized_dot(
        lhs,
        q_lhs,
        lhs_scale,
        rhs,
        q_rhs,
        rhs_scale,
        out_grad_scale,
        out_grad_amax_history,
        dimension_numbers,
        preferred_element_type or compute_dtype,
      )

    return dot_general

  return decorator


class Fp8EinsumOp(base_layer.BaseLayer):
  """An einsum of E4M3 operands with E5M2 gradients and delayed scaling."""

  # Number of steps in the amax history.
  amax_history_length: int = 1024
  # Whether the einsum has fp8 operands. Otherwise they are fake-quantized, a
  # pattern that XLA also rewrites to an fp8 matmul.
  use_direct_quant: bool = True

  # The tensors with a scale and an amax history.
  _TENSORS = ('input', 'kernel', 'output_grad')
  _SUFFIXES: ClassVar[tuple[str, ...]] = ('',)

  def setup(self) -> None:
    if self.amax_history_length <= 0:
      raise ValueError(
        f'amax_history_length must be positive, got {self.amax_history_length}'
      )
    for suffix in self._SUFFIXES:
      for tensor in self._TENSORS:
        # Gated einsums have one input.
        if suffix and tensor == 'input':
          continue
        self._create(f'{tensor}_amax_history{suffix}', 0.0)
        self._create(f'{tensor}_scale{suffix}', 1.0)

  def __call__(self, equation: str, *args: Array) -> Shaped[Array, '...']:
    """Returns the einsum of inputs and kernel."""
    x, kernel = _operands(self, args, 2)
    if not self.use_direct_quant:
      return self.quantized_einsum(equation, x, kernel, False)
    return self._dot(equation, x, self._quantize(x, 'input'), kernel)

  @overload
  def quantized_einsum(
    self, equation: str, x: Array, k: Array, return_quantized_x: Literal[False]
  ) -> Array: ...

  @overload
  def quantized_einsum(
    self, equation: str, x: Array, k: Array, return_quantized_x: Literal[True]
  ) -> tuple[Array, Array]: ...

  def quantized_einsum(
    self, equation: str, x: Array, k: Array, return_quantized_x: bool
  ) -> Array | tuple[Array, Array]:
    """Returns the einsum of fake-quantized operands, with such a gradient.

    Args:
      equation: equation of `x` and `k`.
      x: the inputs.
      k: the kernel.
      return_quantized_x: whether to return the fake-quantized `x` too.
    """
    rounded = self._fake_quantize(x, 'input')
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

  def _meta(self, tensor: str, suffix: str = '') -> tuple[Array, Array]:
    """Returns scale and amax history of a tensor before this step."""
    return (
      self._theta_value(f'{tensor}_scale{suffix}'),
      self._theta_value(f'{tensor}_amax_history{suffix}'),
    )

  def _quantize(
    self, x: Array, tensor: str, suffix: str = ''
  ) -> tuple[Array, Array]:
    """Returns E4M3 values and their scale, without gradients of `x`."""
    x = _inf_to_nan(x)
    return fp8_ops.in_q(x.dtype, _E4M3, x, *self._meta(tensor, suffix))

  def _fake_quantize(self, x: Array, tensor: str, suffix: str = '') -> Array:
    """Returns `x` rounded to E4M3, with a straight-through gradient."""
    x = _inf_to_nan(x)
    return fp8_ops.in_qdq(x.dtype, _E4M3, x, *self._meta(tensor, suffix))

  def _dot(
    self,
    equation: str,
    x: Array,
    quantized_x: tuple[Array, Array],
    kernel: Array,
    suffix: str = '',
  ) -> Array:
    """Returns the einsum of the quantized input and a kernel.

    Args:
      equation: equation of `x` and `kernel`.
      x: the input, which gets the gradient.
      quantized_x: its E4M3 values and their scale.
      kernel: the kernel.
      suffix: of the kernel's variables.
    """
    numbers, order = _dimension_numbers(equation, x, kernel)
    _, x_scale = quantized_x
    quantized_kernel = self._quantize(kernel, 'kernel', suffix)
    _, kernel_scale = quantized_kernel
    product = fp8_ops.quantized_dot(
      x,
      *quantized_x,
      kernel,
      *quantized_kernel,
      *self._meta('output_grad', suffix),
      numbers,
      x.dtype,
    )
    product = fp8_ops.out_dq(x.dtype, x_scale, kernel_scale, product)
    product = _inf_grad_to_nan(product)
    return product if order is None else lax.transpose(product, order)

  def _rounded_product(
    self, equation: str, rounded: Array, kernel: Array, suffix: str = ''
  ) -> Array:
    """Returns the einsum of the fake-quantized input and a kernel."""
    numbers, order = _dimension_numbers(equation, rounded, kernel)
    product = fp8_ops.dot_general_with_precision(
      rounded, self._fake_quantize(kernel, 'kernel', suffix), numbers
    )
    product = fp8_ops.out_qdq(
      product.dtype, _E5M2, product, *self._meta('output_grad', suffix)
    )
    product = _inf_grad_to_nan(product)
    return product if order is None else lax.transpose(product, order)


class Fp8EinsumGatedOp(Fp8EinsumOp):
  """Two fp8 einsums of one input, for gated feed-forward layers."""

  _SUFFIXES = ('', '_gated')

  # Upstream's base class returns one product.
  def __call__(  # type: ignore[override]
    self, equation: str, *args: Array
  ) -> tuple[Shaped[Array, '...'], Shaped[Array, '...']]:
    """Returns the einsums with the kernel and with the gate's kernel."""
    x, kernel, gate = _operands(self, args, 3)
    if not self.use_direct_quant:
      product, rounded = self.quantized_einsum(equation, x, kernel, True)
      gated = self._rounded_product(equation, rounded, gate, '_gated')
      return product, gated
    quantized_x = self._quantize(x, 'input')
    return (
      self._dot(equation, x, quantized_x, kernel),
      self._dot(equation, x, quantized_x, gate, '_gated'),
    )


class Fp8CurrentScalingEinsumOp(base_layer.BaseLayer):
  """An einsum of E4M3 operands with E5M2 gradients and current scaling."""

  def __call__(self, equation: str, *args: Array) -> Shaped[Array, '...']:
    """Returns the einsum of inputs and kernel."""
    x, kernel = _operands(self, args, 2)
    return fp8_current_scaling.einsum(_expanded(equation, x, kernel), x, kernel)


class Fp8CurrentScalingEinsumGatedOp(base_layer.BaseLayer):
  """Two fp8 einsums of one input, for gated feed-forward layers."""

  def __call__(
    self, equation: str, *args: Array
  ) -> tuple[Shaped[Array, '...'], Shaped[Array, '...']]:
    """Returns the einsums with the kernel and with the gate's kernel."""
    x, *kernels = _operands(self, args, 3)
    # XLA quantizes their common input once.
    product, gated = (
      fp8_current_scaling.einsum(_expanded(equation, x, kernel), x, kernel)
      for kernel in kernels
    )
    return product, gated


# A saturating cast makes a finite number of infinity. NaN stays NaN, so that
# the learner sees it.


@jax.custom_vjp
def _inf_to_nan(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `x` with NaN for infinity, with a straight-through gradient."""
  return jnp.where(jnp.isinf(x), jnp.nan, x)


_inf_to_nan.defvjp(lambda x: (_inf_to_nan(x), None), lambda _, grad: (grad,))


@jax.custom_vjp
def _inf_grad_to_nan(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `x`; its gradient has NaN for infinity."""
  return x


_inf_grad_to_nan.defvjp(
  lambda x: (x, None), lambda _, grad: (_inf_to_nan(grad),)
)


def _operands(
  layer: base_layer.BaseLayer, args: tuple[Array, ...], count: int
) -> tuple[Array, ...]:
  """Returns the operands of a layer in its fprop_dtype."""
  dtype = jnp.dtype(layer.fprop_dtype)
  if len(args) != count:
    raise ValueError(
      f'{type(layer).__name__} multiplies {count} operands, got {len(args)}'
    )
  x, *kernels = args
  for kernel in kernels:
    if kernel.dtype != dtype:
      raise ValueError(
        f'the kernel must have fprop_dtype {dtype}, got {kernel.dtype}'
      )
  return (x.astype(dtype), *kernels)


def _expanded(
  equation: str, x: Array, kernel: Array
) -> einsum_equations.Equation:
  return einsum_equations.Equation.parse(equation).expand(x.ndim, kernel.ndim)


def _dimension_numbers(equation: str, x: Array, kernel: Array) -> Any:
  """Returns the dimension numbers of an einsum, and a transposition or None.

  jnp.einsum, as Flax uses it, may swap its operands, whose scales differ.
  """
  return einsum_equations.einsum_eqn_to_dimension_numbers(
    str(_expanded(equation, x, kernel))
  )
