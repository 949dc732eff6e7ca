# SPDX-License-Identifier: Apache-2.0
"""Softmax layers that share their weights with the token embedding."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightHParams
from praxis.layers import activations, base_ops, linears
from praxis.layers.embedding_softmax import fused, lookup, projection, xent
from praxis.layers.embedding_softmax.embedding import finish_lookup
from praxis.layers.embedding_softmax.full_softmax import FullSoftmax
from praxis.layers.embedding_softmax.positions import check_lookup_style

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class SharedEmbeddingSoftmax(FullSoftmax):
  """`FullSoftmax` whose transposed weight is the embedding table."""

  # 'index' gathers rows as `table[ids]`. 'matmul' returns the product of
  # one-hot ids and the table, with zeros for ids of no class. It multiplies if
  # the einsum is replaced, as for quantization, and gathers otherwise.
  lookup_style: str = 'index'
  # Multiplies embeddings by √D.
  scale_sqrt_depth: bool = False
  # A further factor of embeddings.
  embedding_scale: float = 1.0
  # Operations of the lookup.
  array_lookup_tpl: LayerTpl = template_field(base_ops.ArrayLookup)
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)

  class ActivationSharding(base_layer.ActivationSharding):
    # Embeddings [B, T, D], and of a decoding step [B, D].
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
    """Returns the embeddings of `ids`."""
    return finish_lookup(
      self, self._rows(ids), self.scale_sqrt_depth, self.embedding_scale
    )

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    return lookup.rows(self, self._table(), ids, self._table_mapping())

  def _table_mapping(self) -> pytypes.SplitDimsMapping:
    """Returns the mesh axes of the table's V and D."""
    mapping = self.weight_split_dims_mapping.wt
    return None if mapping is None else [mapping[1], mapping[0]]

  def _table(self) -> Float[Array, 'V D']:
    return self.logits_ffn.linear.theta.w.T

  def extend_step(
    self, ids: Int[Array, '*B'], *, time_step: Array
  ) -> Float[Array, '*B D']:
    """Returns the embeddings of `ids`; they do not depend on the step."""
    return self.emb_lookup(ids)


class NClassMajorSharedEmbeddingSoftmax(SharedEmbeddingSoftmax):
  """`SharedEmbeddingSoftmax` with a table of shape [V, D].

  `weight_split_dims_mapping.wt` is of [D, V] as in the base class, so that one
  mapping serves both.
  """

  # Activation of the logits before the soft cap.
  activation_tpl: LayerTpl = template_field(activations.Identity)
  # Operation of the products.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  # Adds a bias to the logits.
  use_bias: bool = True

  def _create_projection(self) -> None:
    fused.check(self)
    xent.check_options(self)
    self.create_variable(
      'w',
      WeightHParams(
        shape=[self.num_classes, self.input_dims],
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self._table_mapping(),
      ),
    )
    if self.use_bias:
      self.create_child('bias', projection.class_bias(self))
    self.create_child('activation', self.activation_tpl.clone())
    if self.bi_tempered_loss_tpl is not None:
      self.create_child('bi_tempered_loss', self.bi_tempered_loss_tpl.clone())

  def _table(self) -> Float[Array, 'V D']:
    return self.theta.w

  def class_table(self) -> fused.ClassTable | None:
    """Returns the projection to logits, or None if it is not one product."""
    if type(self.einsum) is not base_ops.EinsumOp:
      return None
    if type(self.activation) is not activations.Identity:
      return None
    return fused.ClassTable(
      weight=self.theta.w,
      bias=self.bias.theta.b if self.use_bias else None,
      transposed=True,
    )

  def get_logits(
    self, inputs: Float[Array, '*B D'], input_ids: Array | None = None
  ) -> Float[Array, '*B V']:
    """Returns the logits in float32, soft-capped if configured."""
    inputs = self.scale_inputs(inputs)
    with base_ops.gradients_at_once():
      logits = self.einsum('...y,zy->...z', inputs, self.theta.w)
      if self.use_bias:
        logits, bias = base_ops.operands(logits, self.bias.theta.b)
        logits += bias
    logits = self.activation(logits).astype(jnp.float32)
    logits = xent.soft_cap(logits, self.soft_cap_logits)
    out = self.activation_split_dims_mapping.out
    mapping = linears.without_time(out, logits.ndim)
    return base_layer.maybe_shard(logits, mapping, self.mesh_axis_names)
