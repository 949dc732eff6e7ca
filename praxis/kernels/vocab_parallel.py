# SPDX-License-Identifier: Apache-2.0
"""Softmax cross entropy of a table whose classes are sharded over mesh axes.

Vocabulary parallelism (Megatron-LM, arXiv:1909.08053, section 3): each device
reduces its own classes, and only results per token and gradients of the
activations are exchanged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.kernels import softmax_xent_reference as reference
from praxis.kernels.softmax_xent_reference import (
  Gradients,
  Spec,
  Tokens,
  Weights,
)

Forward = Callable[[Array, Array, Array, Array], Tokens]
Gradient = Callable[
  [Array, Array, Array, Array, Weights], tuple[Tokens, Gradients]
]


def error(spec: Spec, axes: tuple[str, ...], vocab: int) -> str | None:
  """Returns why `axes` of the current mesh cannot shard `vocab` classes."""
  mesh = jax.sharding.get_abstract_mesh()
  if not set(axes) <= set(mesh.axis_names):
    return (
      f'class_axes {axes} must be axes of the mesh of jax.set_mesh, which has '
      f'{mesh.axis_names}'
    )
  if any(t != jax.sharding.AxisType.Auto for t in mesh.axis_types):
    return (
      f'class_axes {axes} needs a mesh with axes of type Auto, got '
      f'{mesh.axis_types}; unset class_axes'
    )
  num_shards = math.prod(mesh.shape[axis] for axis in axes)
  if vocab % num_shards:
    return (
      f'class_axes {axes} must divide the classes, got {vocab} classes on '
      f'{num_shards} shards; pad the vocabulary'
    )
  if spec.label_smoothing:
    return (
      'class_axes does not support label_smoothing, which needs the sum of all '
      "logits of a token; use implementation 'xla'"
    )
  return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabParallel:
  """The loss of one shard of the tokens and classes, inside `jax.shard_map`."""

  spec: Spec
  # Mesh axes that shard the classes.
  axes: tuple[str, ...]
  # The results of one shard, as if the table had no other classes.
  shard_forward: Forward
  # The same results and the gradients; without z-loss, which the weights have.
  shard_gradient: Gradient

  def forward(
    self,
    x: Float[Array, 'N D'],
    table: Float[Array, 'rows columns'],
    bias: Float[Array, ' B'],
    labels: Int[Array, ' N'],
  ) -> Tokens:
    """Returns the results over all classes.

    Args:
      x: activations, equal on the shards of the classes.
      table: this device's classes.
      bias: their bias, or empty.
      labels: ids among all classes.
    """
    begin, shard_labels = self._shard_labels(table, labels)
    shard = self.shard_forward(x, table, bias, shard_labels)
    logsumexp = _logsumexp(shard.logsumexp, self.axes)
    # Computed without the logit of the label, which would round a small xent.
    rest = logsumexp - shard.logsumexp
    rest = jnp.where(logsumexp == shard.logsumexp, 0.0, rest)
    is_masked = shard.logsumexp == -jnp.inf
    label_xent = jnp.where(is_masked, logsumexp + jnp.inf, shard.xent + rest)
    label_xent = jnp.where(shard_labels < 0, 0.0, label_xent)
    xent = jax.lax.psum(label_xent, self.axes)
    num_classes = self.spec.vocab(table) * jax.lax.axis_size(self.axes)
    xent = jnp.where(labels < num_classes, xent, jnp.nan)

    largest = _logits_of(shard.argmax, x, table, bias, self.spec)
    candidates = jax.lax.all_gather((largest, shard.argmax + begin), self.axes)
    best = jnp.argmax(candidates[0], axis=0)[None]
    argmax = jnp.take_along_axis(candidates[1], best, axis=0)[0]
    return Tokens(xent, logsumexp, argmax)

  def gradient(
    self,
    x: Float[Array, 'N D'],
    table: Float[Array, 'rows columns'],
    bias: Float[Array, ' B'],
    labels: Int[Array, ' N'],
    weights: Weights,
  ) -> tuple[Tokens, Gradients]:
    """Returns the results over all classes, and the gradients of this shard's.

    The gradient needs the logsumexp over all classes, so that each shard
    computes its logits twice.

    Args:
      x: activations, equal on the shards of the classes.
      table: this device's classes.
      bias: their bias, or empty.
      labels: ids among all classes.
      weights: cotangents per token.
    """
    tokens = self.forward(x, table, bias, labels)
    _, shard_labels = self._shard_labels(table, labels)
    xent = jnp.where(labels < 0, 0.0, weights.xent)
    probability = xent + weights.logsumexp
    probability += 2 * self.spec.z_loss_weight * xent * tokens.logsumexp
    label_weight = jnp.where(shard_labels < 0, 0.0, xent)
    shard_weights = Weights(
      label_weight, probability - label_weight, tokens.logsumexp
    )
    _, grads = self.shard_gradient(x, table, bias, shard_labels, shard_weights)
    dx = jax.lax.psum(grads.x.astype(jnp.float32), self.axes).astype(x.dtype)
    return tokens, grads._replace(x=dx)

  def _shard_labels(
    self, table: Float[Array, 'rows columns'], labels: Int[Array, ' N']
  ) -> tuple[Int[Array, ''], Int[Array, ' N']]:
    """Returns the first class of the shard, and the labels relative to it.

    Labels of other shards are -1.
    """
    vocab = self.spec.vocab(table)
    begin = jax.lax.axis_index(self.axes) * vocab
    is_inside = (begin <= labels) & (labels < begin + vocab)
    return begin, jnp.where(is_inside, labels - begin, -1)


def _logsumexp(
  shard: Float[Array, ' N'], axes: tuple[str, ...]
) -> Float[Array, ' N']:
  largest = jax.lax.pmax(shard, axes)
  largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
  return largest + jnp.log(jax.lax.psum(jnp.exp(shard - largest), axes))


def _logits_of(
  classes: Int[Array, ' N'],
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  spec: Spec,
) -> Float[Array, ' N']:
  """Returns the logit of one class of each token."""
  rows = table[classes] if spec.transposed else table[:, classes].T
  logits = jnp.einsum('nd,nd->n', x, rows, preferred_element_type=jnp.float32)
  if bias.size:
    logits += bias[classes]
  return reference.soft_capped(logits, spec)
