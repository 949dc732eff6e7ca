# SPDX-License-Identifier: Apache-2.0
"""From the activations of a model to one logit a class."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, base_ops, linears
from praxis.layers.embedding_softmax import xent

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LogitsProjection(base_layer.BaseLayer):
  """What makes logits, for the losses that compare them with labels."""

  # Sizes of the input and of the output.
  input_dims: int = 0
  num_classes: int = 0
  # c · tanh(logits / c) replaces the logits; 0 and None leave them.
  soft_cap_logits: float | None = 0.0
  # What the bias is initialised with.
  bias_init: float | None = 0.0
  # The projection; None takes the inputs for logits.
  feed_forward_tpl: LayerTpl | None = pax_fiddle.template_field(
    linears.FeedForward
  )

  def setup(self) -> None:
    if self.feed_forward_tpl is None:
      return
    feed_forward = self.feed_forward_tpl.clone().set(
      input_dims=self.input_dims,
      output_dims=self.num_classes,
      activation_tpl=pax_fiddle.Config(activations.Identity),
      bias_init=self.bias_init,
    )
    feed_forward.weight_split_dims_mapping.wt = (
      self.weight_split_dims_mapping.wt
    )
    feed_forward.activation_split_dims_mapping.out = (
      self.activation_split_dims_mapping.out
    )
    self.create_child('logits_ffn', feed_forward)

  def scale_inputs(self, inputs: Float[Array, '*B D']) -> Array:
    """Returns what is projected: the inputs, unless a subclass scales them."""
    return inputs

  def _logits(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B V']:
    """Returns the logits in float32, capped if the layer caps them."""
    logits = inputs
    if self.feed_forward_tpl is not None:
      with base_ops.gradients_at_once():
        logits = self.logits_ffn(self.scale_inputs(inputs))
    return xent.soft_cap(logits.astype(jnp.float32), self.soft_cap_logits)
