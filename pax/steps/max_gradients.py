# SPDX-License-Identifier: Apache-2.0
"""Combines fp8 scale gradients by maximum instead of sum.

A layer that runs several times in a step, shared or once per microbatch of a
pipeline, has several gradients per variable. Those of variables with the flag
TAKE_LARGEST_GRADIENT, the scales and amax histories of fp8, combine by maximum:
in the loss function these variables have Flax's dtype `fm32`, whose addition is
the maximum.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops
from jax import lax

from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
# A pytree of arrays.
_TreeT = TypeVar('_TreeT')


def max_gradient_mask(
  var_weight_hparams: Nested[base_layer.WeightHParams],
) -> Nested[bool]:
  """Returns which variables combine their gradients by maximum."""
  return jax.tree.map(
    base_layer.var_take_largest_gradient,
    var_weight_hparams,
    is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
  )


def to_fm32(mdl_vars: _TreeT, is_max: Nested[bool]) -> _TreeT:
  """Returns the variables with the masked ones converted to fm32."""

  def convert(use_fm32: bool, x: JTensor) -> JTensor:
    return lax.convert_element_type(x, fp8_ops.fm32) if use_fm32 else x

  return jax.tree.map(convert, is_max, mdl_vars)


def fill_unused(
  grads: _TreeT, old: Nested[JTensor], is_max: Nested[bool]
) -> _TreeT:
  """Returns gradients, where masked variables without a use keep `old`."""

  def fill(use_max: bool, grad: JTensor, old: JTensor) -> JTensor:
    # -inf is the maximum of no gradients.
    return jnp.where(grad == -jnp.inf, old, grad) if use_max else grad

  return jax.tree.map(fill, is_max, grads, old)


def reduce_over_replicas(
  summed: _TreeT, grads: _TreeT, is_max: Nested[bool], axis_name: str
) -> _TreeT:
  """Returns the sums over replicas, and maxima of masked gradients.

  Args:
    summed: Sums of all gradients over the replicas.
    grads: Gradients of this replica.
    is_max: Mask of the variables that combine by maximum.
    axis_name: Mesh axis of the replicas.
  """

  def reduce(use_max: bool, total: JTensor, grad: JTensor) -> JTensor:
    return lax.pmax(grad, axis_name) if use_max else total

  return jax.tree.map(reduce, is_max, summed, grads)
