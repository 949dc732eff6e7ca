# SPDX-License-Identifier: Apache-2.0
"""From a model's last activations to scores and losses."""

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
  """Returns logits, log_probs and probs of all classes, [*B, V]."""
  logits = softmax.get_logits(activations, input_ids)
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  return NestedMap(
    logits=logits,
    log_probs=log_probs.astype(logits.dtype),
    probs=jnp.exp(log_probs).astype(logits.dtype),
  )


def score_labels(
  softmax: base_layer.BaseLayer,
  activations: Float[Array, 'B T D'],
  labels: NestedMap,
  input_ids: Int[Array, 'B T'] | None = None,
) -> NestedMap:
  """Returns what `softmax` says of `labels`, and sums of it.

  Args:
    softmax: scores the classes.
    activations: what it scores them by.
    labels: class_ids, or class_probabilities, and class_weights.
    input_ids: what the activations were made of, for softmaxes that ask.

  Returns:
    The output of the softmax, with per_token_xent [B, T], per_sequence_xent
    [B] and total_loss, which is avg_xent so far.
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
  """Sets aux_loss and aux_loss_weight, sums over all that `layer` holds.

  They join total_loss and the summaries unless `skip`.
  """
  collected = layer.variables.get(base_layer.AUX_LOSS, {})
  is_loss = lambda x: isinstance(x, base_layer.AuxLossStruct)
  losses = jax.tree.leaves(collected, is_leaf=is_loss)
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
  weights: Float[Array, 'B T'],
  entropy_loss_weight: float,
) -> None:
  """Adds the mean negative entropy, in nats, of the predictions."""
  weights = weights.astype(jnp.float32)
  total = jnp.sum(weights)
  shares = weights / jnp.where(total > 0.0, total, 1.0)
  log_probs = output.log_probs
  negative = jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
  output.avg_entropy_loss = jnp.sum(negative * shares)
  output.total_loss += entropy_loss_weight * output.avg_entropy_loss
  layer.add_summary('avg_entropy_loss', output.avg_entropy_loss)
  layer.add_summary(
    'per_token_logits', jnp.mean(output.logits, axis=-1) * shares
  )
