# SPDX-License-Identifier: Apache-2.0
"""Layers that log outputs outside a range, by default that of float16."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import attentions, linears, multi_query_attention

__getattr__ = module_getattr(__name__)

_MAX = float(jnp.finfo(jnp.float16).max)


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class OverflowLimits:
  """The range without a warning."""

  max_val: float = _MAX
  min_val: float = -_MAX


class OverflowChecker(base_layer.BaseLayer):
  """Logs a warning for values outside the limits."""

  # The range of values without a warning.
  overflow_limits: OverflowLimits = pax_fiddle.instance_field(OverflowLimits)

  def check_overflow(
    self, inputs: Float[Array, '...'], class_name: str, name: str | None
  ) -> None:
    """Logs the minimum and maximum of `inputs` if they exceed the limits.

    Args:
      inputs: the values to check.
      class_name: the layer's class, for the message.
      name: the layer's name, for the message.
    """
    limits = self.overflow_limits
    maximum, minimum = jnp.max(inputs), jnp.min(inputs)

    def warn(maximum: Array, minimum: Array) -> None:
      logging.warning(
        f'Overflow in: {class_name}, {name}, max_val: {maximum}, '
        f'min_val: {minimum}'
      )

    jax.lax.cond(
      (maximum > limits.max_val) | (minimum < limits.min_val),
      lambda: jax.debug.callback(warn, maximum, minimum),
      lambda: None,
    )


class FeedForwardOverflowCheck(linears.FeedForward, OverflowChecker):
  """A FeedForward that checks for overflows."""

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    outputs = super().__call__(inputs)
    self.check_overflow(outputs, 'FeedForward', self.name)
    return outputs


class AttentionProjectionOverflowCheck(
  attentions.AttentionProjection, OverflowChecker
):
  """An AttentionProjection that checks for overflows."""

  def __call__(self, inputs: Float[Array, '...']) -> Float[Array, '...']:
    outputs = super().__call__(inputs)
    self.check_overflow(outputs, 'AttentionProjection', self.name)
    return outputs


class CombinedQKVProjectionLayerOverflowCheck(
  attentions.CombinedQKVProjectionLayer, OverflowChecker
):
  """A CombinedQKVProjectionLayer that checks for overflows."""

  def __call__(self, inputs: Float[Array, '*B D']) -> tuple[Any, Any, Any]:
    outputs = super().__call__(inputs)
    for name, x in zip('qkv', outputs, strict=True):
      self.check_overflow(x, f'CombinedQKVProjection {name}', self.name)
    return outputs


class OneHeadedAttentionProjectionOverflowCheck(
  multi_query_attention.OneHeadedAttentionProjection, OverflowChecker
):
  """A OneHeadedAttentionProjection that checks for overflows."""

  def __call__(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B H']:
    outputs = super().__call__(inputs)
    self.check_overflow(outputs, 'OneHeadedAttentionProjection', self.name)
    return outputs


def add_overflow_checks(
  task_p: pax_fiddle.Config, max_val: float = _MAX, min_val: float = -_MAX
) -> pax_fiddle.Config:
  """Returns a task Config whose transformer layers check for overflows.

  The model must be a LanguageModel with repeated transformer layers.
  """
  task_p = task_p.clone()
  stack = task_p.model.lm_tpl.stacked_transformer_tpl
  layer = getattr(stack, 'block', stack).transformer_layer_params_tpl
  attention = layer.tr_atten_tpl
  replacements = [
    (layer.tr_fflayer_tpl, 'fflayer_tpl', FeedForwardOverflowCheck),
    (attention, 'proj_tpl', AttentionProjectionOverflowCheck),
    (
      attention,
      'combined_qkv_proj_tpl',
      CombinedQKVProjectionLayerOverflowCheck,
    ),
    (
      attention,
      'headless_proj_tpl',
      OneHeadedAttentionProjectionOverflowCheck,
    ),
  ]
  for owner, name, cls in replacements:
    if not hasattr(owner, name):
      continue
    template = getattr(owner, name).clone()
    template.cls = cls
    template.overflow_limits = OverflowLimits(max_val=max_val, min_val=min_val)
    setattr(owner, name, template)
  return task_p
