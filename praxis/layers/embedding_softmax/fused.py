# SPDX-License-Identifier: Apache-2.0
"""How softmax layers use the kernel that never holds their logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.layers.embedding_softmax import xent
from praxis.nested_map import NestedMap

_IMPLEMENTATIONS = ('xla', 'auto', 'native', 'reference')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassTable:
  """What turns a vector into logits."""

  # [D, V], or [V, D] if transposed.
  weight: Array
  # [V].
  bias: Array | None
  transposed: bool


def is_on(layer: Any) -> bool:
  """Whether the softmax `layer` asks for the fused kernel."""
  return layer.xent_implementation != 'xla'


def check(layer: Any) -> None:
  """Raises ValueError for a softmax `layer` that the kernel cannot do."""
  if layer.xent_implementation not in _IMPLEMENTATIONS:
    raise ValueError(
      f'xent_implementation must be one of {_IMPLEMENTATIONS}, got '
      f'{layer.xent_implementation!r}'
    )
  if not is_on(layer):
    return
  without = {
    'bi_tempered_loss_tpl': getattr(layer, 'bi_tempered_loss_tpl', None),
    'logits_abs_max': getattr(layer, 'logits_abs_max', None),
  }
  for name, value in without.items():
    if value:
      raise ValueError(
        f'xent_implementation={layer.xent_implementation!r} knows no {name}, '
        f"got {value}; unset it, or set xent_implementation='xla'"
      )
  if getattr(layer, 'feed_forward_tpl', layer) is None:
    raise ValueError(
      f'xent_implementation={layer.xent_implementation!r} needs the projection '
      "to logits, got feed_forward_tpl=None; set xent_implementation='xla'"
    )


def losses(
  layer: Any,
  inputs: Float[Array, '*B D'],
  weights: Float[Array, '*B'],
  ids: Int[Array, '*B'],
  smoothing_prob: float,
) -> NestedMap:
  """Returns what `layer` returns, without logits and log_probs.

  The gradient of total_xent is that of the z-loss too, whose own is 0: the
  kernel makes both in one pass, and the sum of the two losses is right.
  """
  # Only who asks for the kernel loads it.
  from praxis.kernels import softmax_xent

  table = layer.class_table()
  options = softmax_xent.Options(
    soft_cap=layer.soft_cap_logits or 0.0,
    z_loss_weight=layer.z_loss_weight,
    label_smoothing=smoothing_prob,
    transposed=table.transposed,
    implementation=layer.xent_implementation,
  )
  flat = layer.scale_inputs(inputs).reshape(-1, inputs.shape[-1])
  result = softmax_xent.softmax_xent(
    flat,
    table.weight,
    ids.reshape(-1),
    weights.reshape(-1),
    table.bias,
    options,
  )
  values = jax.lax.stop_gradient(result)
  tokens = xent.TokenLosses(
    xent=values.xent.reshape(ids.shape),
    log_z=values.logsumexp.reshape(ids.shape),
    argmax=values.argmax.reshape(ids.shape),
  )
  output = xent.summarize(tokens, weights, ids)
  square = jnp.square(tokens.log_z)
  z_total = layer.z_loss_weight * jnp.sum(weights * square)
  denominator = output.total_weight + xent.NO_WEIGHT
  output.total_xent = result.total - z_total
  output.avg_xent = output.total_xent / denominator
  if layer.z_loss_weight:
    output.z_loss = z_total / denominator
  return output
