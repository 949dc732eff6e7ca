# SPDX-License-Identifier: Apache-2.0
"""Per-example gradient norms from one backward pass (ghost clipping).

The forward pass takes a parameter w as ParamWithAux(w, scales), with a weight
for each example. Its gradient is ParamWithAux(g, squared_norms): g is the
gradient of the weighted examples, and `squared_norms` holds the squared norm of
each weighted per-example gradient. Gradients of inputs are not weighted,
because the layers below weight their own parameters. The loss is a mean over
the examples.

Plain parameters behave as usual.

References:
  Li et al., https://arxiv.org/abs/2110.05679
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import struct
from jaxtyping import Array, Float

from praxis import pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor


@struct.dataclass
class ParamWithAux:
  """A parameter with a value for each example."""

  param: JTensor
  # [N]: weights in the forward pass, squared norms in a gradient.
  aux: JTensor | None

  @property
  def dtype(self) -> Any:
    """The dtype of the parameter."""
    return self.param.dtype

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the parameter."""
    return self.param.shape

  def __jax_array__(self) -> JTensor:
    # Computing with `param` would leave its use out of the norms.
    raise TypeError(_not_converted(self.shape))

  @property
  def T(self) -> JTensor:
    """The transposed array; a parameter with values has none.

    Raises:
      AttributeError: Always.
    """
    raise AttributeError(_not_converted(self.shape))

  def astype(self, dtype: Any) -> ParamWithAux:
    """Returns parameter and values in another dtype."""
    aux = None if self.aux is None else self.aux.astype(dtype)
    return ParamWithAux(self.param.astype(dtype), aux)

  def transpose(self) -> ParamWithAux:
    """Returns the transposed parameter with the same values."""
    return ParamWithAux(self.param.transpose(), self.aux)


def _not_converted(shape: tuple[int, ...]) -> str:
  return (
    f'a layer computes with a weight of shape {shape} without the norms of'
    ' ghost clipping; wrap its Config by generate_wrapped_template(layer_p,'
    ' force_wrap=True), use no weights that layers share, or choose'
    ' DpSgdStochasticGradient'
  )


def get_param(params: Nested[ParamWithAux | JTensor]) -> Nested[JTensor]:
  """Returns the parameters without their values."""
  return jax.tree.map(
    lambda x: x.param if _has_aux(x) else x, params, is_leaf=_has_aux
  )


def get_aux(params: Nested[ParamWithAux | JTensor]) -> JTensor | None:
  """Returns the values, which all parameters that have some share."""
  leaves = jax.tree.leaves(params, is_leaf=_has_aux)
  return next((x.aux for x in leaves if _has_aux(x)), None)


# Maps (params, inputs, gradient of the output) to the squared norm of each
# example's gradient, in a tree like the params.
SquaredNorms = Callable[..., Nested[Float[Array, ' N']]]


def with_norms(
  fn: Callable[..., Any], squared_norms: SquaredNorms
) -> Callable[..., Any]:
  """Returns fn(params, *inputs) that also accepts ParamWithAux parameters.

  Args:
    fn: A function of parameters and inputs with a leading example dimension.
    squared_norms: Its squared per-example gradient norms.
  """

  @jax.custom_vjp
  def call(params: Nested[Any], *inputs: Any) -> Any:
    return fn(get_param(params), *inputs)

  def forward(params: Nested[Any], *inputs: Any) -> tuple[Any, Any]:
    outputs, vjp = jax.vjp(fn, get_param(params), *inputs)
    return outputs, (vjp, params, inputs)

  def backward(residuals: Any, g: Any) -> tuple[Any, ...]:
    vjp, params, inputs = residuals
    scales = get_aux(params)
    if scales is None:
      return vjp(g)
    num_examples = scales.shape[0]
    weighted = jax.tree.map(lambda x: _scale_examples(scales, x), g)
    # XLA eliminates the unused outputs of both calls.
    grads, *_ = vjp(weighted)
    _, *input_grads = vjp(g)
    # The loss is a mean, so g holds 1 / N of each example's own gradient.
    per_example = jax.tree.map(lambda x: num_examples * x, weighted)
    squares = squared_norms(get_param(params), inputs, per_example)
    # Frozen parameters of a layer have no values.
    param_grads = jax.tree.map(
      lambda param, grad, square: (
        ParamWithAux(grad, square.astype(scales.dtype))
        if _has_aux(param)
        else grad
      ),
      params,
      grads,
      squares,
      is_leaf=_has_aux,
    )
    return param_grads, *input_grads

  call.defvjp(forward, backward)
  return call


def _has_aux(x: Any) -> bool:
  return isinstance(x, ParamWithAux)


def _scale_examples(scales: Float[Array, ' N'], x: JTensor) -> JTensor:
  return scales.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype) * x
