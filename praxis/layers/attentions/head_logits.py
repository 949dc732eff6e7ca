# SPDX-License-Identifier: Apache-2.0
"""From the products of queries and keys to the probabilities of each head.

Shapes as in dot_product.py.

References: attention sinks, https://arxiv.org/abs/2309.17453; as a logit of
each head, https://arxiv.org/abs/2508.10925.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from praxis import base_layer
from praxis.layers.attentions import attention_core, head_projections


class HeadLogits(head_projections.HeadProjections):
  """The options of the logits and of their softmax."""

  # Divides logits by √H, in addition to any scale of the queries.
  scale_logits_by_head_dims: bool = False
  # Soft cap of the logits, cap * tanh(logits / cap); 0 or None disables it.
  atten_logit_cap: float | None = 0.0
  # A constant logit in the softmax's denominator that attends to no value.
  attention_extra_logit: float | None = None
  # Whether each head learns such a logit, the variable `sinks` [N]. It is not
  # scaled and not capped.
  use_attention_sinks: bool = False
  # Whether fully masked queries give 0 instead of the mean of the values.
  zero_fully_masked: bool = False

  def _create_sinks(self) -> None:
    if not self.use_attention_sinks:
      return
    split = self.weight_split_dims_mapping.proj
    keep_float32 = (
      base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION
    )
    sinks = base_layer.WeightHParams(
      shape=[self.num_heads],
      init=base_layer.WeightInit.Constant(0.0),
      collections=[keep_float32],
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split and [split[1]],
    )
    self.create_variable('sinks', sinks)

  def _extra_logit(self) -> attention_core.ExtraLogit:
    """Returns the logit that attends to no value, of each head if learned."""
    if self.use_attention_sinks:
      return self.theta.sinks
    return self.attention_extra_logit

  def _logit_transform(self) -> attention_core.LogitTransform:
    scaled = self.scale_logits_by_head_dims
    return attention_core.LogitTransform(
      scale=self._head_dim() ** -0.5 if scaled else 1.0,
      cap=self.atten_logit_cap,
      extra_logit=self._extra_logit(),
    )

  def _probs(
    self,
    logits: Float[Array, 'B N T S'],
    mask: attention_core.Mask,
    bias: attention_core.Bias | None,
  ) -> Float[Array, 'B N T S']:
    return attention_core.attention_probs(
      logits,
      mask,
      bias,
      self._logit_transform(),
      zero_fully_masked=self.zero_fully_masked,
    )

  def _cap_logits(self, logits: Float[Array, '*B']) -> Float[Array, '*B']:
    return attention_core.cap_logits(logits, self.atten_logit_cap)

  def _log_softmax_with_extra_logit(
    self, logits: Float[Array, '*B S']
  ) -> Float[Array, '*B S']:
    extra_logit = attention_core.extra_logit_of_rows(self._extra_logit())
    return attention_core.log_softmax(logits, extra_logit)

  def _check_extra_logit(self) -> None:
    if self.use_attention_sinks and self.attention_extra_logit is not None:
      raise ValueError(
        'attention_extra_logit must be None with use_attention_sinks=True, got '
        f'{self.attention_extra_logit}; the sinks replace it'
      )
