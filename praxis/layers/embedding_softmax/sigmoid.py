# SPDX-License-Identifier: Apache-2.0
"""Sigmoid cross entropy for multi-label classification."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers.embedding_softmax import projection, xent
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class SigmoidCrossEntropy(projection.LogitsProjection):
  """Projects to one logit per class; classes are independent."""

  def setup(self) -> None:
    if self.feed_forward_tpl is None and self.input_dims != self.num_classes:
      raise ValueError(
        f'without feed_forward_tpl, input_dims must be num_classes '
        f'{self.num_classes}, got {self.input_dims}'
      )
    super().setup()

  def get_logits(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B V']:
    """Returns the logits in float32, soft-capped if configured."""
    return self._logits(inputs)

  def logits_to_logp(self, logits: Float[Array, '*B V']) -> Array:
    """Returns the log-probabilities in float32."""
    return jax.nn.log_sigmoid(logits.astype(jnp.float32))

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    class_weights: Float[Array, '*B W'],
    class_ids: Int[Array, '*B 1'] | None = None,
    class_probabilities: Float[Array, '*B V'] | None = None,
  ) -> NestedMap:
    """Returns the cross entropy per example, summed over classes.

    `class_weights` has one weight per example, or one per example and class.
    The keys are those of `FullSoftmax`.

    Raises:
      ValueError: neither labels nor probabilities are given, or labels with
        num_classes = 1, or a shape is not that of the signature.
    """
    xent.check_labels(
      inputs,
      self.num_classes,
      class_weights,
      class_ids,
      class_probabilities,
      weight_sizes=(1, self.num_classes),
    )
    if class_probabilities is None:
      class_probabilities = self._one_hot(class_ids)
    logits = self.get_logits(inputs)
    log_probs = self.logits_to_logp(logits)
    target = class_probabilities.astype(jnp.float32)
    # log(1 - sigmoid(x)) is log(sigmoid(-x)).
    log_not_probs = jax.nn.log_sigmoid(-logits)
    class_xent = -(target * log_probs + (1 - target) * log_not_probs)
    weights = class_weights.astype(jnp.float32)
    total_xent = jnp.sum(class_xent * weights)
    total_weight = jnp.sum(weights)
    if weights.shape[-1] == self.num_classes:
      class_xent = class_xent * weights
    output = NestedMap(
      logits=logits,
      log_probs=log_probs,
      per_example_argmax=jnp.argmax(jax.lax.stop_gradient(logits), axis=-1),
      per_example_xent=jnp.sum(class_xent, axis=-1),
      total_xent=total_xent,
      total_weight=total_weight,
      avg_xent=total_xent / (total_weight + xent.NO_WEIGHT),
    )
    if class_ids is not None:
      is_right = output.per_example_argmax == class_ids[..., 0]
      example_weight = jnp.max(weights, axis=-1)
      output.accuracy = xent.weighted_mean(
        is_right.astype(jnp.float32), example_weight
      )
    return output

  def _one_hot(self, class_ids: Array | None) -> Array:
    if class_ids is None:
      raise ValueError(
        'class_ids or class_probabilities must be given, got neither'
      )
    if self.num_classes == 1:
      raise ValueError(
        'class_ids must be None with num_classes=1; pass class_probabilities '
        'of shape [..., 1]'
      )
    return jax.nn.one_hot(class_ids[..., 0], self.num_classes)
