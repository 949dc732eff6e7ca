# SPDX-License-Identifier: Apache-2.0
"""Gradients of which the largest counts, where others are added up.

A layer that runs several times in a step, shared or once for each microbatch
of a pipeline, gives its variables several gradients. Those of variables flagged
TAKE_LARGEST_GRADIENT, the scales and histories of fp8, combine by maximum: for
a loss the variables have a type of flax's whose sum is the maximum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops
from jax import lax

from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested


def flagged(var_weight_hparams: Nested[Any]) -> Nested[bool]:
  """Returns which variables take the largest of their gradients."""
  return jax.tree.map(
    base_layer.var_take_largest_gradient,
    var_weight_hparams,
    is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
  )


def as_maximums(
  mdl_vars: Nested[JTensor], flags: Nested[bool]
) -> Nested[JTensor]:
  """Returns variables for a loss; gradients of flagged ones do not add up."""

  def convert(flag: bool, x: JTensor) -> JTensor:
    return lax.convert_element_type(x, fp8_ops.fm32) if flag else x

  return jax.tree.map(convert, flags, mdl_vars)


def settled(
  grads: Nested[JTensor], old: Nested[JTensor], flags: Nested[bool]
) -> Nested[JTensor]:
  """Returns gradients; flagged ones that no use gave are the old values."""

  def settle(flag: bool, grad: JTensor, old: JTensor) -> JTensor:
    # The maximum of nothing.
    return jnp.where(grad == -jnp.inf, old, grad) if flag else grad

  return jax.tree.map(settle, flags, grads, old)


def over_replicas(
  summed: Nested[JTensor],
  grads: Nested[JTensor],
  flags: Nested[bool],
  axis_name: str,
) -> Nested[JTensor]:
  """Returns summed gradients, but of flagged ones the replicas' largest."""

  def choose(flag: bool, total: JTensor, own: JTensor) -> JTensor:
    return lax.pmax(own, axis_name) if flag else total

  return jax.tree.map(choose, flags, summed, grads)
