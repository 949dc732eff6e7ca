# SPDX-License-Identifier: Apache-2.0
"""Softmaxes whose weights are the token embedding too."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import activations, base_ops, linears
from praxis.layers.embedding_softmax import fused, lookup, xent
from praxis.layers.embedding_softmax.embedding import finish_lookup
from praxis.layers.embedding_softmax.full_softmax import FullSoftmax
from praxis.layers.embedding_softmax.positions import check_lookup_style

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class SharedEmbeddingSoftmax(FullSoftmax):
  """A `FullSoftmax` that looks tokens up in its transposed matrix."""

  # 'matmul' looks vectors up by a product with one-hot rows, which is cheap
  # when the table is split over devices, 'index' by a gather.
  lookup_style: str = 'index'
  # Whether vectors are multiplied by the square root of their size.
  scale_sqrt_depth: bool = False
  # Do the look-up.
  array_lookup_tpl: LayerTpl = template_field(base_ops.ArrayLookup)
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # The vectors, [B, T, D], and those of a decoding step, [B, D].
    emb_out_split_dims_mapping: pytypes.SplitDimsMapping = None
    extend_step_out: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    check_lookup_style(self.lookup_style)
    self._create_projection()
    self.create_child('array_lookup', self.array_lookup_tpl.clone())
    self.create_child('einsum', self.einsum_tpl.clone())

  def _create_projection(self) -> None:
    super().setup()

  def emb_lookup(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    """Returns the vectors of `ids`."""
    return finish_lookup(self, self._rows(ids), self.scale_sqrt_depth)

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    return lookup.rows(self, self._table(), ids, self.class_axes())

  def _table(self) -> Float[Array, 'V D']:
    return self.logits_ffn.linear.theta.w.T

  def extend_step(
    self, ids: Int[Array, '*B'], *, time_step: Array
  ) -> Float[Array, '*B D']:
    """Returns the vectors of `ids`, whatever the step."""
    return self.emb_lookup(ids)


class NClassMajorSharedEmbeddingSoftmax(SharedEmbeddingSoftmax):
  """A `SharedEmbeddingSoftmax` that stores its table as [classes, dims]."""

  # What the logits go through before the cap.
  activation_tpl: LayerTpl = template_field(activations.Identity)
  # Does the products.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  # Whether logits have a bias.
  use_bias: bool = True

  def _create_projection(self) -> None:
    fused.check(self)
    mapping = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w',
      WeightHParams(
        shape=[self.num_classes, self.input_dims],
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=mapping,
      ),
    )
    if self.use_bias:
      self.create_variable(
        'b',
        WeightHParams(
          shape=[self.num_classes],
          init=WeightInit.Constant(self.bias_init or 0.0),
          mesh_shape=self.mesh_shape,
          tensor_split_dims_mapping=None if mapping is None else [mapping[0]],
        ),
      )
    self.create_child('activation', self.activation_tpl.clone())
    if self.bi_tempered_loss_tpl is not None:
      self.create_child('bi_tempered_loss', self.bi_tempered_loss_tpl.clone())

  def _table(self) -> Float[Array, 'V D']:
    return self.theta.w

  def class_axes(self) -> pytypes.DimShardingAnnotation:
    """Returns the mesh axes that split the classes."""
    mapping = self.weight_split_dims_mapping.wt
    return None if mapping is None else mapping[0]

  def class_table(self) -> fused.ClassTable | None:
    """Returns what makes logits, None where it is more than a product."""
    if type(self.einsum) is not base_ops.EinsumOp:
      return None
    if type(self.activation) is not activations.Identity:
      return None
    return fused.ClassTable(
      weight=self.theta.w,
      bias=self.theta.b if self.use_bias else None,
      transposed=True,
    )

  def get_logits(
    self, inputs: Float[Array, '*B D'], input_ids: Array | None = None
  ) -> Float[Array, '*B V']:
    """Returns the logits in float32, capped if the layer caps them."""
    inputs = self.scale_inputs(inputs)
    with base_ops.gradients_at_once():
      logits = self.einsum('...y,zy->...z', inputs, self.theta.w)
      if self.use_bias:
        logits, bias = base_ops.operands(logits, self.theta.b)
        logits += bias
    logits = self.activation(logits).astype(jnp.float32)
    logits = xent.soft_cap(logits, self.soft_cap_logits)
    out = self.activation_split_dims_mapping.out
    mapping = linears.without_time(out, logits.ndim)
    return base_layer.maybe_shard(logits, mapping, self.mesh_axis_names)
