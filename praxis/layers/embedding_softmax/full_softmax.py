# SPDX-License-Identifier: Apache-2.0
"""Softmax over classes with its cross entropy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import base_ops, linears
from praxis.layers.embedding_softmax import (
  fused,
  projection,
  time_chunks,
  xent,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class FullSoftmax(projection.LogitsProjection):
  """Projects to logits and computes the cross entropy in float32."""

  # Replaces the cross entropy by a loss of logits and distributions.
  bi_tempered_loss_tpl: LayerTpl | None = template_field(None)
  # Label smoothing: probability moved from the label to the other classes;
  # whether it applies in eval too.
  label_smoothing_prob: float = 0.0
  label_smoothing_apply_for_eval: bool = True
  # Weight of the z-loss, the mean square of the log partition function.
  z_loss_weight: float = 0.0
  # Divides the input by √D.
  scale_before_logits: bool = False
  # A further factor of the input.
  input_scale: float = 1.0
  # Time steps per chunk of logits in memory; None for one chunk. With chunks
  # logits and log_probs of the output are None.
  chunk_size: int | None = None
  # 'xla' materializes the logits. 'native' and 'reference' are implementations
  # of the fused kernel `praxis.kernels.softmax_xent`, which does not; then the
  # output has no logits and log_probs. 'auto' selects 'native' where it was
  # measured to be faster, else 'xla'. Ids outside the classes, such as -1, add
  # the smoothing of all classes and the z-loss with 'xla', as upstream, and
  # nothing with the kernel: give them weight 0.
  xent_implementation: str = 'xla'

  def setup(self) -> None:
    fused.check(self)
    xent.check_options(self)
    super().setup()
    if self.bi_tempered_loss_tpl is not None:
      self.create_child('bi_tempered_loss', self.bi_tempered_loss_tpl.clone())

  def get_logits(
    self, inputs: Float[Array, '*B D'], input_ids: Array | None = None
  ) -> Float[Array, '*B V']:
    """Returns the logits in float32, soft-capped if configured."""
    return self._logits(inputs)

  def logits_to_logp(self, logits: Float[Array, '*B V']) -> Array:
    """Returns the log-probabilities in float32."""
    return jax.nn.log_softmax(logits.astype(jnp.float32))

  def scale_inputs(self, inputs: Float[Array, '*B D']) -> Array:
    """Returns `inputs`, scaled if configured."""
    if self.scale_before_logits:
      inputs = inputs * self.input_dims**-0.5
    return inputs if self.input_scale == 1.0 else inputs * self.input_scale

  def class_axes(self) -> pytypes.DimShardingAnnotation:
    """Returns the mesh axes that shard the classes."""
    mapping = self.weight_split_dims_mapping.wt
    return None if mapping is None else mapping[1]

  def class_table(self) -> fused.ClassTable | None:
    """Returns the projection to logits, or None if it is not one product."""
    if self.feed_forward_tpl is None:
      return None
    linear = self.logits_ffn.linear
    if type(linear) is not linears.Linear:
      return None
    if type(linear.einsum) is not base_ops.EinsumOp:
      return None
    has_bias = self.logits_ffn.has_bias
    return fused.ClassTable(
      weight=linear.theta.w,
      bias=self.logits_ffn.bias.theta.b if has_bias else None,
      transposed=False,
    )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    class_weights: Float[Array, '*B 1'],
    class_ids: Int[Array, '*B 1'] | None = None,
    class_probabilities: Float[Array, '*B V'] | None = None,
    input_ids: Int[Array, '...'] | None = None,
  ) -> NestedMap:
    """Returns the cross entropy of `inputs` with labels or distributions.

    The result has logits, log_probs, per_example_argmax, per_example_xent,
    total_xent, total_weight and avg_xent; with `class_ids` also accuracy; with
    z_loss_weight also z_loss, which is an auxiliary loss too. Losses are in
    nats.

    Raises:
      ValueError: neither labels nor distributions are given, or a shape is
        not that of the signature.
    """
    xent.check_labels(
      inputs, self.num_classes, class_weights, class_ids, class_probabilities
    )
    weights = class_weights[..., 0].astype(jnp.float32)
    if class_ids is None or class_probabilities is not None:
      output = self._from_logits(
        inputs, weights, class_ids, class_probabilities, input_ids
      )
    else:
      output = self._from_ids(inputs, weights, class_ids[..., 0], input_ids)
    if 'z_loss' in output:
      self.add_summary('aux_z_loss', output.z_loss)
      self.add_aux_loss('aux_z_loss', output.z_loss)
    return output

  def _smoothing_prob(self) -> float:
    smooth = not self.do_eval or self.label_smoothing_apply_for_eval
    return self.label_smoothing_prob if smooth else 0.0

  def _from_ids(
    self, inputs: Array, weights: Array, ids: Array, input_ids: Array | None
  ) -> NestedMap:
    # Children cannot create variables within a scan or a kernel call.
    if not self.is_initializing():
      if fused.is_on(self):
        return fused.losses(self, inputs, weights, ids, self._smoothing_prob())
      size = self.chunk_size
      if size and self._fits_chunks(inputs, size):
        return self._from_chunks(inputs, weights, ids, input_ids, size)
    return self._from_logits(inputs, weights, ids[..., None], None, input_ids)

  def _from_logits(
    self,
    inputs: Array,
    weights: Array,
    class_ids: Array | None,
    probs: Array | None,
    input_ids: Array | None,
  ) -> NestedMap:
    logits = self.get_logits(inputs, input_ids)
    ids = None if class_ids is None else class_ids[..., 0]
    smoothing = self._smoothing()
    losses = xent.label_losses(logits, ids, probs, smoothing)
    if self.bi_tempered_loss_tpl is not None:
      if probs is None:
        one_hot = jax.nn.one_hot(ids, self.num_classes)
        probs = one_hot * (smoothing.on - smoothing.off) + smoothing.off
      replaced = self.bi_tempered_loss(logits, probs)
      losses = xent.TokenLosses(
        xent=replaced, log_z=losses.log_z, argmax=losses.argmax
      )
    output = xent.summarize(losses, weights, ids)
    output.logits = logits
    output.log_probs = logits - losses.log_z[..., None]
    if self.z_loss_weight:
      z_loss = xent.weighted_mean(jnp.square(losses.log_z), weights)
      output.z_loss = self.z_loss_weight * z_loss
    return output

  def _smoothing(self) -> xent.Smoothing:
    return xent.Smoothing.among_others(self._smoothing_prob(), self.num_classes)

  def _fits_chunks(self, inputs: Array, chunk_size: int) -> bool:
    return bool(
      inputs.ndim == 3
      and inputs.shape[1] >= chunk_size
      and not self.z_loss_weight
      and self.bi_tempered_loss_tpl is None
    )

  def _from_chunks(
    self,
    inputs: Array,
    weights: Array,
    ids: Array,
    input_ids: Array | None,
    chunk_size: int,
  ) -> NestedMap:
    """Computes `_from_logits` in chunks of `chunk_size` time steps."""
    smoothing = self._smoothing()

    def chunk_losses(
      layer: FullSoftmax, inputs: Array, ids: Array, input_ids: Array | None
    ) -> xent.TokenLosses:
      logits = layer.get_logits(inputs, input_ids)
      return xent.token_losses(logits, ids, smoothing)

    losses = time_chunks.map_chunks(
      chunk_losses, self, (inputs, ids, input_ids), chunk_size
    )
    output = xent.summarize(losses, weights, ids)
    output.logits = output.log_probs = None
    return output
