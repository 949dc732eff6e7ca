# SPDX-License-Identifier: Apache-2.0
"""How norms of gradients of single examples leave a backward pass.

A parameter w goes in as ParamWithAux(w, scales), a factor for each example. Its
gradient comes out as ParamWithAux(g, squares): g is the gradient with each
example weighted by its factor, and `squares` are the squared norms of what each
example, so weighted, has for a gradient on its own. Gradients of inputs are not
weighted: layers below do that themselves. Losses are means over the examples.

Without the wrapper all is as ever.

References:
  Li et al., https://arxiv.org/abs/2110.05679
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from praxis import pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ParamWithAux:
  """A parameter with a number for each example."""

  param: JTensor
  # Factors on the way in, squared norms on the way out.
  aux: JTensor | None

  @property
  def dtype(self) -> Any:
    """That of the parameter."""
    return self.param.dtype

  @property
  def shape(self) -> tuple[int, ...]:
    """That of the parameter."""
    return self.param.shape

  def astype(self, dtype: Any) -> ParamWithAux:
    """Returns both in another dtype."""
    aux = None if self.aux is None else self.aux.astype(dtype)
    return ParamWithAux(self.param.astype(dtype), aux)

  def transpose(self) -> ParamWithAux:
    """Returns the parameter transposed, with the same numbers."""
    return ParamWithAux(self.param.transpose(), self.aux)


def get_param(params: Nested[ParamWithAux | JTensor]) -> Nested[JTensor]:
  """Returns the parameters without their numbers."""
  return jax.tree.map(
    lambda x: x.param if _is_wrapped(x) else x, params, is_leaf=_is_wrapped
  )


def get_aux(params: Nested[ParamWithAux | JTensor]) -> JTensor | None:
  """Returns the numbers of the first parameter; all have the same."""
  first = jax.tree.leaves(params, is_leaf=_is_wrapped)[0]
  return first.aux if _is_wrapped(first) else None


# Maps (params, inputs, gradient of the output) to squared norms, for each
# example, in a tree like the params.
SquaredNorms = Callable[..., Nested[Float[Array, ' N']]]


def with_norms(
  fn: Callable[..., Any], squared_norms: SquaredNorms
) -> Callable[..., Any]:
  """Returns fn(params, *inputs) that takes wrapped parameters as well."""

  @jax.custom_vjp
  def call(params: Nested[Any], *inputs: Any) -> Any:
    return fn(get_param(params), *inputs)

  def forward(params: Nested[Any], *inputs: Any) -> tuple[Any, Any]:
    plain = get_param(params)
    outputs, vjp = jax.vjp(fn, plain, *inputs)
    return outputs, (vjp, plain, inputs, get_aux(params))

  def backward(residuals: Any, g: Any) -> tuple[Any, ...]:
    vjp, params, inputs, scales = residuals
    if scales is None:
      return vjp(g)
    examples = scales.shape[0]
    weighted = jax.tree.map(lambda x: _weigh(scales, x), g)
    # The compiler drops the half of each that is not used.
    grads, _ = _split(vjp(weighted))
    _, input_grads = _split(vjp(g))
    # The loss is a mean: an example alone has `examples` times its share.
    alone = jax.tree.map(lambda x: examples * x, weighted)
    squares = squared_norms(params, inputs, alone)
    wrapped = jax.tree.map(
      lambda grad, square: ParamWithAux(grad, square.astype(scales.dtype)),
      grads,
      squares,
    )
    return wrapped, *input_grads

  call.defvjp(forward, backward)
  return call


def _is_wrapped(x: Any) -> bool:
  return isinstance(x, ParamWithAux)


def _split(grads: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
  return grads[0], grads[1:]


def _weigh(scales: Float[Array, ' N'], x: JTensor) -> JTensor:
  return scales.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype) * x
