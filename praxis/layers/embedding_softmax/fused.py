# SPDX-License-Identifier: Apache-2.0
"""Softmax layers on the fused kernel, which does not materialize logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.layers.embedding_softmax import lookup, xent
from praxis.nested_map import NestedMap

_IMPLEMENTATIONS = ('xla', 'auto', 'native', 'reference')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassTable:
  """A projection to logits as plain arrays."""

  # Shape [D, V], or [V, D] if transposed.
  weight: Array
  # [V].
  bias: Array | None
  transposed: bool


def may_be_on(layer: Any) -> bool:
  """Returns whether a softmax layer, or its Config, allows the kernel."""
  return getattr(layer, 'xent_implementation', 'xla') != 'xla'


def is_on(layer: Any) -> bool:
  """Returns whether the softmax `layer` runs the fused kernel.

  'auto' selects it where the native kernel was measured to be faster than
  materialized logits, unless a mesh axis shards the classes, which was not
  measured, or the logits are not one product.
  """
  if layer.xent_implementation != 'auto':
    return layer.xent_implementation != 'xla'
  # Loads the kernel only if it is requested.
  from praxis.kernels import softmax_xent

  if not softmax_xent.prefers_native(py_utils.target_platform()):
    return False
  is_split = lookup.num_parts(layer, layer.class_axes()) > 1
  return not is_split and layer.class_table() is not None


def check(layer: Any) -> None:
  """Raises ValueError for a `layer` that the kernel does not support."""
  if layer.xent_implementation not in _IMPLEMENTATIONS:
    raise ValueError(
      f'xent_implementation must be one of {_IMPLEMENTATIONS}, got '
      f'{layer.xent_implementation!r}'
    )
  if may_be_on(layer) and layer.bi_tempered_loss_tpl is not None:
    raise ValueError(
      f'xent_implementation={layer.xent_implementation!r} does not support '
      "bi_tempered_loss_tpl; unset it, or set xent_implementation='xla'"
    )


def losses(
  layer: Any,
  inputs: Float[Array, '*B D'],
  weights: Float[Array, '*B'],
  ids: Int[Array, '*B'],
  smoothing_prob: float,
) -> NestedMap:
  """Returns the result of `layer` without logits and log_probs.

  Classes that mesh axes shard stay sharded where the kernel supports it.
  The gradient of total_xent includes that of the z-loss, whose own gradient is
  0: the kernel computes both in one pass, and the gradient of the sum is right.
  """
  from praxis.kernels import softmax_xent, vocab_parallel

  table = layer.class_table()
  if table is None:
    raise ValueError(
      f'xent_implementation={layer.xent_implementation!r} requires logits '
      'that are one product with a table, got '
      f"{type(layer).__name__} with other parts; set it to 'auto' or 'xla'"
    )
  options = softmax_xent.Options(
    soft_cap=layer.soft_cap_logits or 0.0,
    z_loss_weight=layer.z_loss_weight,
    label_smoothing=smoothing_prob,
    transposed=table.transposed,
    implementation=layer.xent_implementation,
  )
  class_axes = lookup.split_axes(layer, layer.class_axes())
  if not vocab_parallel.error(options, class_axes, layer.num_classes):
    options = dataclasses.replace(options, class_axes=class_axes)
  # The kernel ignores ids outside the classes, their z-loss too.
  is_class = (ids >= 0) & (ids < layer.num_classes)
  flat = layer.scale_inputs(inputs).reshape(-1, inputs.shape[-1])
  result = softmax_xent.softmax_xent(
    flat,
    table.weight,
    jnp.where(is_class, ids, -1).reshape(-1),
    weights.reshape(-1),
    table.bias,
    options,
  )
  tokens = xent.TokenLosses(
    xent=result.xent.reshape(ids.shape),
    log_z=result.logsumexp.reshape(ids.shape),
    argmax=result.argmax.reshape(ids.shape),
  )
  output = xent.summarize(tokens, weights, ids)
  square = jnp.square(jax.lax.stop_gradient(tokens.log_z))
  z_total = layer.z_loss_weight * jnp.sum(weights * is_class * square)
  denominator = output.total_weight + xent.NO_WEIGHT
  output.total_xent = result.total - z_total
  output.avg_xent = output.total_xent / denominator
  if layer.z_loss_weight:
    output.z_loss = z_total / denominator
  return output
