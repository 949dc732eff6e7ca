# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of logits in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.nested_map import NestedMap

# Keeps the mean of a batch with zero weights finite.
NO_WEIGHT = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLosses:
  """Loss and argmax per token; leaves have the shape of the tokens."""

  # Unweighted cross entropy in nats.
  xent: Array
  # Log partition function.
  log_z: Array
  # Class of the highest logit.
  argmax: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smoothing:
  """Label smoothing: probability of the label, and of each other class."""

  on: float = 1.0
  off: float = 0.0

  @classmethod
  def among_others(cls, prob: float, num_classes: int) -> Smoothing:
    """Moves `prob` from the label to the other classes."""
    if not prob:
      return cls()
    return cls(on=1.0 - prob, off=prob / (num_classes - 1))

  @classmethod
  def among_all(cls, prob: float, num_classes: int) -> Smoothing:
    """Moves `prob` from the label to all classes."""
    off = prob / num_classes
    return cls(on=1.0 - prob + off, off=off)


def check_options(layer: Any) -> None:
  """Raises ValueError for fields of a softmax that give a wrong loss.

  These are label_smoothing_prob, z_loss_weight, logits_abs_max and chunk_size,
  as far as the layer has them.
  """
  title = f'{type(layer).__name__} {layer.name!r}'
  prob = layer.label_smoothing_prob
  if not 0 <= prob < 1 or (prob and layer.num_classes < 2):
    raise ValueError(
      f'label_smoothing_prob of {title} must be in [0, 1), and 0 for fewer '
      f'than two classes, got {prob} with num_classes={layer.num_classes}'
    )
  for name in ('z_loss_weight', 'logits_abs_max', 'chunk_size'):
    value = getattr(layer, name, None)
    if value is not None and value < 0:
      raise ValueError(
        f'{name} of {title} must not be negative, got {value}; leave it out to '
        'disable it'
      )


def check_labels(
  inputs: Float[Array, '*B D'],
  num_classes: int,
  class_weights: Array,
  class_ids: Array | None,
  class_probabilities: Array | None,
  weight_sizes: Sequence[int] = (1,),
) -> None:
  """Raises ValueError for labels or weights of another shape than the inputs.

  Broadcasting would compute another loss: weights [B] of inputs [B, D] would
  be the weight of the first example.

  Args:
    inputs: of the softmax.
    num_classes: number of classes.
    class_weights: one of `weight_sizes` for each input.
    class_ids: one for each input.
    class_probabilities: `num_classes` for each input.
    weight_sizes: valid sizes of the last dimension of `class_weights`.
  """
  lead = inputs.shape[:-1]
  for name, value, sizes in (
    ('class_weights', class_weights, weight_sizes),
    ('class_ids', class_ids, (1,)),
    ('class_probabilities', class_probabilities, (num_classes,)),
  ):
    shapes = [(*lead, size) for size in sizes]
    if value is not None and value.shape not in shapes:
      wanted = ' or '.join(map(str, shapes))
      raise ValueError(
        f'{name} must have shape {wanted} for inputs {inputs.shape}, got '
        f'{value.shape}'
      )


def soft_cap(
  logits: Float[Array, '*B'], cap: float | int | None
) -> Float[Array, '*B']:
  """Returns `cap` · tanh(logits / `cap`), or the logits if it is None or 0."""
  return cap * jnp.tanh(logits / cap) if cap else logits


def token_losses(
  logits: Float[Array, '*B V'],
  ids: Int[Array, '*B'],
  smoothing: Smoothing = Smoothing(),
) -> TokenLosses:
  """Returns the cross entropy with labels `ids`.

  For ids outside the classes it is that of the smoothing alone: 0 without.
  """
  num_classes = logits.shape[-1]
  log_z, argmax = log_z_and_argmax(logits)
  # A comparison keeps each device on its shard of the vocabulary; a gather
  # would collect the logits first.
  is_label = jnp.arange(num_classes) == ids[..., None]
  label_logit = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
  is_class = (ids >= 0) & (ids < num_classes)
  xent = jnp.where(is_class, log_z - label_logit, 0.0)
  if smoothing.off:
    others = num_classes - is_class.astype(logits.dtype)
    rest = others * log_z - (jnp.sum(logits, axis=-1) - label_logit)
    xent = smoothing.on * xent + smoothing.off * rest
  return TokenLosses(xent=xent, log_z=log_z, argmax=argmax)


def distribution_losses(
  logits: Float[Array, '*B V'], probs: Float[Array, '*B V']
) -> TokenLosses:
  """Returns the cross entropy with the distributions `probs`."""
  log_z, argmax = log_z_and_argmax(logits)
  log_probs = logits - log_z[..., None]
  xent = -jnp.sum(probs.astype(jnp.float32) * log_probs, axis=-1)
  return TokenLosses(xent=xent, log_z=log_z, argmax=argmax)


def label_losses(
  logits: Float[Array, '*B V'],
  ids: Int[Array, '*B'] | None,
  probs: Float[Array, '*B V'] | None,
  smoothing: Smoothing = Smoothing(),
) -> TokenLosses:
  """Returns the cross entropy with `probs`, or else with smoothed `ids`.

  Raises:
    ValueError: neither is given.
  """
  if probs is not None:
    return distribution_losses(logits, probs)
  if ids is not None:
    return token_losses(logits, ids, smoothing)
  raise ValueError(
    'class_ids or class_probabilities must be given, got neither'
  )


def log_z_and_argmax(
  logits: Float[Array, '*B V'],
) -> tuple[Float[Array, '*B'], Int[Array, '*B']]:
  """Returns the log partition function and the first argmax."""
  num_classes = logits.shape[-1]
  highest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  sum_exp = jnp.sum(jnp.exp(logits - highest), axis=-1)
  # A minimum over indices vectorizes and shares the maximum above; argmax on
  # CPU is an order of magnitude slower.
  index = jnp.arange(num_classes, dtype=jnp.int32)
  is_highest = jax.lax.stop_gradient(logits) >= highest
  argmax = jnp.min(jnp.where(is_highest, index, num_classes), axis=-1)
  return jnp.log(sum_exp) + highest[..., 0], argmax


def weighted_mean(
  values: Float[Array, '*B'], weights: Float[Array, '*B']
) -> Float[Array, '']:
  """Returns the weighted mean of `values`."""
  return jnp.sum(values * weights) / (jnp.sum(weights) + NO_WEIGHT)


def summarize(
  losses: TokenLosses,
  weights: Float[Array, '*B'],
  ids: Int[Array, '*B'] | None = None,
) -> NestedMap:
  """Returns the losses per token and of the batch, by public key."""
  total_weight = jnp.sum(weights)
  total_xent = jnp.sum(losses.xent * weights)
  output = NestedMap(
    per_example_argmax=jax.lax.stop_gradient(losses.argmax),
    per_example_xent=losses.xent,
    total_xent=total_xent,
    total_weight=total_weight,
    avg_xent=total_xent / (total_weight + NO_WEIGHT),
  )
  if ids is not None:
    is_right = (losses.argmax == ids).astype(jnp.float32)
    output.accuracy = weighted_mean(is_right, weights)
  return output
