# SPDX-License-Identifier: Apache-2.0
"""Probabilities and losses from the last activations of a model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.nested_map import NestedMap


def probabilities(
  softmax: base_layer.BaseLayer,
  activations: Float[Array, '*B D'],
  input_ids: Int[Array, '*B'] | None = None,
) -> NestedMap:
  """Returns logits, log_probs and probs over the vocabulary, [*B, V]."""
  logits = softmax.get_logits(activations, input_ids)
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  return NestedMap(
    logits=logits,
    log_probs=log_probs.astype(logits.dtype),
    probs=jnp.exp(log_probs).astype(logits.dtype),
  )


def label_losses(
  softmax: base_layer.BaseLayer,
  activations: Float[Array, 'B T D'],
  labels: NestedMap,
  input_ids: Int[Array, 'B T'] | None = None,
) -> NestedMap:
  """Returns the cross entropy of the labels.

  Args:
    softmax: computes the cross entropy.
    activations: inputs of the softmax.
    labels: class_ids [B, T] or class_probabilities [B, T, V], and
      class_weights [B, T].
    input_ids: input tokens of the model, for softmaxes that use them.

  Returns:
    The output of the softmax with per_token_xent [B, T], per_sequence_xent [B]
    and total_loss, initially avg_xent.
  """
  class_ids = labels.get('class_ids')
  output = softmax(
    activations,
    class_weights=labels.class_weights[..., None],
    class_ids=None if class_ids is None else class_ids[..., None],
    class_probabilities=labels.get('class_probabilities'),
    input_ids=input_ids,
  )
  weights = labels.class_weights.astype(jnp.float32)
  output.per_token_xent = output.per_example_xent * weights
  output.per_sequence_xent = jnp.sum(output.per_token_xent, axis=-1)
  output.total_loss = output.avg_xent
  return output


def add_aux_losses(
  layer: base_layer.BaseLayer, output: NestedMap, *, skip: bool = False
) -> None:
  """Sets aux_loss and aux_loss_weight, the sums over all children.

  Adds them to total_loss and to the summaries unless `skip`.
  """
  collection = layer.variables.get(base_layer.AUX_LOSS, {})
  is_loss = lambda x: isinstance(x, base_layer.AuxLossStruct)
  losses = jax.tree.leaves(collection, is_leaf=is_loss)
  zero = jnp.zeros([], jnp.float32)
  output.aux_loss = sum((jnp.sum(loss.value) for loss in losses), zero)
  output.aux_loss_weight = sum((jnp.sum(loss.weight) for loss in losses), zero)
  if skip:
    return
  output.total_loss += output.aux_loss
  layer.add_summary('total_aux_loss', output.aux_loss)
  layer.add_summary('total_aux_loss_weight', output.aux_loss_weight)


def add_entropy_loss(
  layer: base_layer.BaseLayer,
  output: NestedMap,
  class_weights: Float[Array, 'B T'],
  entropy_loss_weight: float,
) -> None:
  """Adds the weighted mean negative entropy of the predictions.

  Args:
    layer: adds the summaries.
    output: of the softmax; total_loss and avg_entropy_loss are set.
    class_weights: weights of the tokens.
    entropy_loss_weight: factor of the negative entropy (in nats).
  """
  class_weights = class_weights.astype(jnp.float32)
  total = jnp.sum(class_weights)
  token_weights = class_weights / jnp.where(total > 0.0, total, 1.0)
  log_probs = output.log_probs
  negative_entropy = jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
  output.avg_entropy_loss = jnp.sum(negative_entropy * token_weights)
  output.total_loss += entropy_loss_weight * output.avg_entropy_loss
  layer.add_summary('avg_entropy_loss', output.avg_entropy_loss)
  layer.add_summary(
    'per_token_logits', jnp.mean(output.logits, axis=-1) * token_weights
  )
