# SPDX-License-Identifier: Apache-2.0
"""Shared embedding and softmax of GShard language models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightInit
from praxis.layers import linears
from praxis.layers.embedding_softmax import lookup, xent
from praxis.layers.embedding_softmax.embedding import finish_lookup
from praxis.nested_map import NestedMap


class GShardSharedEmbeddingSoftmax(base_layer.BaseLayer):
  """Token embeddings that are also the weights of the softmax.

  References: GShard, https://arxiv.org/abs/2006.16668
  """

  # Model dimension and number of classes.
  input_dims: int = 0
  num_classes: int = 0
  # Divides losses by the number of labels, padding included, instead of by the
  # sum of their weights.
  use_tgt_labels_size_as_loss_denominator: bool = True
  # Soft cap c of the logits, c · tanh(logits / c); 0 or None: no cap.
  soft_cap_logits: float | None = 0.0
  # Clips logits to this absolute value; 0 or None: no clipping.
  logits_abs_max: float | None = 0.0
  # Weight of the z-loss, the mean square of the log partition function.
  z_loss_weight: float = 0.0
  # Label smoothing in training: probability spread over all classes.
  label_smoothing_prob: float = 0.0

  class ActivationSharding(base_layer.ActivationSharding):
    # Embeddings [B, T, D], and of a decoding step [B, D].
    emb_out_split_dims_mapping: pytypes.SplitDimsMapping = None
    extend_step_out: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    xent.check_options(self)
    table = pax_fiddle.Config(
      linears.Linear,
      input_dims=self.num_classes,
      output_dims=self.input_dims,
      params_init=WeightInit.Gaussian(),
    )
    table.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.wt
    self.create_child('embedding', table)

  def emb_lookup(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    """Returns the embeddings of `ids`."""
    table = self.embedding.theta.w
    vectors = base_layer.gather_rows(table, ids, fill_zeros=True)
    vectors = lookup.shard_as_columns(
      self, vectors, self.weight_split_dims_mapping.wt
    )
    return finish_lookup(self, vectors, scale_sqrt_depth=False)

  def extend_step(
    self, ids: Int[Array, '*B'], *, time_step: Array
  ) -> Float[Array, '*B D']:
    """Returns the embeddings of `ids`; they do not depend on the step."""
    return self.emb_lookup(ids)

  def get_logits(
    self, inputs: Float[Array, '*B D'], input_ids: Array | None = None
  ) -> Float[Array, '*B V']:
    """Returns the logits in float32, soft-capped and clipped."""
    scaled = inputs * self.input_dims**-0.5
    logits = jnp.einsum('...d,vd->...v', scaled, self.embedding.theta.w)
    out = self.activation_split_dims_mapping.out
    mapping = linears.without_time(out, logits.ndim)
    logits = base_layer.maybe_shard(logits, mapping, self.mesh_axis_names)
    logits = xent.soft_cap(logits.astype(jnp.float32), self.soft_cap_logits)
    if self.logits_abs_max:
      logits = jnp.clip(logits, -self.logits_abs_max, self.logits_abs_max)
    return logits

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    class_weights: Float[Array, '*B 1'],
    class_ids: Int[Array, '*B 1'] | None = None,
    class_probabilities: Float[Array, '*B V'] | None = None,
    input_ids: Int[Array, '...'] | None = None,
  ) -> NestedMap:
    """Returns the cross entropy with the keys of `FullSoftmax`.

    `avg_xent_weight`, the denominator of avg_xent, is its weight as a metric.

    Raises:
      ValueError: neither labels nor distributions are given, or a shape is
        not that of the signature.
    """
    xent.check_labels(
      inputs, self.num_classes, class_weights, class_ids, class_probabilities
    )
    logits = self.get_logits(inputs, input_ids)
    ids = None if class_ids is None else class_ids[..., 0]
    smoothing = self._smoothing()
    probs = class_probabilities
    if probs is not None:
      # Distributions, too, are smoothed and get no gradient.
      probs = jax.lax.stop_gradient(probs)
      probs = probs * smoothing.on + (1.0 - probs) * smoothing.off
    losses = xent.label_losses(logits, ids, probs, smoothing)
    weights = class_weights[..., 0].astype(jnp.float32)
    output = xent.summarize(losses, weights, ids)
    output.logits = logits
    output.log_probs = logits - losses.log_z[..., None]
    denominator = self._denominator(weights)
    output.avg_xent = output.total_xent / denominator
    output.avg_xent_weight = denominator
    square = jnp.sum(jnp.square(losses.log_z) * weights)
    output.z_loss = self.z_loss_weight * square / denominator
    self.add_summary('aux_z_loss', output.z_loss)
    self.add_aux_loss('aux_z_loss', output.z_loss)
    if smoothing.off:
      unsmoothed = xent.label_losses(logits, ids, class_probabilities)
      self.add_summary(
        'avg_xent_prior_to_label_smoothing',
        jnp.sum(unsmoothed.xent * weights) / denominator,
      )
    return output

  def _smoothing(self) -> xent.Smoothing:
    prob = 0.0 if self.do_eval else self.label_smoothing_prob
    return xent.Smoothing.among_all(prob, self.num_classes)

  def _denominator(self, weights: Array) -> Array:
    if self.use_tgt_labels_size_as_loss_denominator:
      return jnp.asarray(weights.size, jnp.float32)
    return jnp.sum(weights) + xent.NO_WEIGHT
