# SPDX-License-Identifier: Apache-2.0
"""Split-dims mappings for the weights and activations of transformer models.

Letters name dimensions: b batch, l length, d model, f hidden, n heads, h head
or (MoE) hidden, v vocabulary, e expert, m model, g group, c expert capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers import embedding_softmax
from praxis.layers.transformer_models import stack_configs
from praxis.pytypes import SplitDimsMapping

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
Axis = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mappings:
  """Split-dims mappings by kind of weight (w_*) and activation (a_*)."""

  w_df: SplitDimsMapping = None
  w_dnh: SplitDimsMapping = None
  w_emh: SplitDimsMapping = None
  w_vd: SplitDimsMapping = None
  a_bld: SplitDimsMapping = None
  a_blf: SplitDimsMapping = None
  a_blh: SplitDimsMapping = None
  a_blnh: SplitDimsMapping = None
  a_blv: SplitDimsMapping = None
  a_egch: SplitDimsMapping = None
  a_egcm: SplitDimsMapping = None
  # Activations of a decoding step.
  a_bd: SplitDimsMapping = None
  a_bf: SplitDimsMapping = None
  # Accepted and ignored: step logits use a_blv without the time dimension.
  a_bv: SplitDimsMapping = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
  """The parallelism of each mesh axis."""

  # Data parallelism: shards the batch.
  replica_axis: Axis
  # Fully sharded data parallelism: shards the batch, and one dimension of each
  # weight.
  data_axis: Axis
  # Tensor parallelism: shards the other dimension of each weight.
  mdl_axis: Axis
  # Expert parallelism: shards the experts, and all that data_axis shards.
  data_expert_axis: Axis = None
  # Sequence parallelism: shards the time dimension of activations.
  seq_axis: Axis = None
  # Axes that shard the batch; None for replica, data and data_expert.
  batch_axes: tuple[str, ...] | None = None
  # Whether activations between layers are sharded over mdl_axis too, which
  # saves memory at the cost of collectives.
  training_optimized: bool

  def mappings(self) -> Mappings:
    """Returns the mappings of the v1 sharding."""
    data = _combine(self.data_axis, self.data_expert_axis)
    weight = _combine(data, self.seq_axis)
    batch = self.batch_axes or _combine(self.replica_axis, data)
    mdl, seq = self.mdl_axis, self.seq_axis
    if self.data_expert_axis is None:
      expert, group = self.data_axis, None
      group_in_training = None
    else:
      expert, group = self.data_expert_axis, self.data_axis
      group_in_training = _combine(self.replica_axis, self.data_axis)
    a_blf = [batch, seq, mdl]
    a_bld = a_blf if self.training_optimized else [batch, None, None]
    in_training = [expert, group_in_training, None, mdl]
    return Mappings(
      w_df=[weight, mdl],
      w_dnh=[weight, mdl, None],
      w_emh=[expert, group, mdl],
      w_vd=[mdl, weight],
      a_bld=a_bld,
      a_blf=a_blf,
      a_blh=a_blf,
      a_blnh=[batch, seq, mdl, None],
      a_blv=a_blf,
      a_egch=[expert, group, None, mdl],
      a_egcm=in_training
      if self.training_optimized
      else [batch, None, None, None],
      a_bd=[a_bld[0], a_bld[2]],
      a_bf=[batch, mdl],
      a_bv=[batch, mdl],
    )


def v1_mappings(*, training_optimized: Any, **axes: Any) -> Mappings:
  """Returns the mappings of the v1 sharding from the fields of `Axes`.

  `training_optimized` is a bool, or the tracer of one in generated code.
  """
  return Axes(training_optimized=bool(training_optimized), **axes).mappings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedTemplates:
  """The templates of a model that mappings are applied to; None is skipped."""

  softmax_and_embeddings: Sequence[LayerTpl | None]
  position_embs: Sequence[LayerTpl | None]
  ngrammers: Sequence[LayerTpl | None]
  stacks: Sequence[LayerTpl | None]
  mtps: Sequence[LayerTpl | None] = ()
  layer_inputs: Sequence[LayerTpl | None] = ()


def shard_model(
  model_p: LayerTpl,
  templates: ShardedTemplates,
  mappings_fn: Callable[..., Mappings],
  *,
  ici_mesh_shape: Sequence[int] | None,
  dcn_mesh_shape: Sequence[int] | None = None,
  mesh_axis_names: Sequence[str],
  **options: Any,
) -> LayerTpl:
  """Sets the mesh of a model and the mappings of its templates.

  Args:
    model_p: Config of the model, changed in place.
    templates: its templates.
    mappings_fn: `v1_mappings`, or `Mappings` for explicit mappings.
    ici_mesh_shape: sizes of the mesh axes within a slice.
    dcn_mesh_shape: sizes of the mesh axes over slices.
    mesh_axis_names: names of the mesh axes.
    **options: arguments of `mappings_fn`.

  Returns:
    model_p.
  """
  mappings = mappings_fn(**options)
  model_p.set(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
  )
  for embedding in _present(templates.softmax_and_embeddings):
    _shard_embedding(embedding, mappings)
  for ngrammer in _present(templates.ngrammers):
    ngrammer.weight_split_dims_mapping.wt = mappings.w_vd
  trainable = embedding_softmax.TrainablePositionalEmbedding
  for position_emb in _present(templates.position_embs):
    if issubclass(position_emb.cls, trainable):
      position_emb.weight_split_dims_mapping.wt = mappings.w_df
      _shard_lookup(position_emb, mappings)
  for stack in _present(templates.stacks):
    for stacked in stack_configs.stacked_transformers(stack):
      _shard_layers(stacked, mappings)
  for layer_inputs in _present(templates.layer_inputs):
    _shard_layer_inputs(layer_inputs, mappings)
  for mtp in _present(templates.mtps):
    proj = mtp.module_tpl.proj_tpl
    proj.weight_split_dims_mapping.wt = mappings.w_df
    proj.activation_split_dims_mapping.out = mappings.a_bld
  return model_p


def is_class_major(embedding: LayerTpl) -> bool:
  """Returns whether `wt` of a softmax or an embedding is of [V, D].

  NClassMajorSharedEmbeddingSoftmax has a weight [V, D] but `wt` of [D, V].
  """
  return issubclass(
    embedding.cls,
    (
      embedding_softmax.Embedding,
      embedding_softmax.GShardSharedEmbeddingSoftmax,
    ),
  )


def _present(templates: Sequence[LayerTpl | None]) -> list[LayerTpl]:
  return [template for template in templates if template is not None]


def _shard_layers(stacked: LayerTpl, mappings: Mappings) -> None:
  for layer in stack_configs.layer_templates(stacked):
    _shard_attention(layer.tr_atten_tpl, mappings)
    if layer.cross_atten_tpl is not None:
      _shard_attention(layer.cross_atten_tpl, mappings)
    _shard_feed_forward(layer.tr_fflayer_tpl, mappings)
    if stack_configs.has_field(layer, 'layer_input_tpl') and (
      layer.layer_input_tpl is not None
    ):
      _shard_layer_input_branch(layer.layer_input_tpl, mappings)
  if stacked.moe_layer_tpl is not None:
    _shard_moe(stacked.moe_layer_tpl, mappings)


def _shard_embedding(embedding: LayerTpl, mappings: Mappings) -> None:
  """Shards a softmax or an embedding, whose weight is [V, D] or [D, V]."""
  w_vd = mappings.w_vd
  w_dv = None if w_vd is None else [w_vd[1], w_vd[0]]
  weight = w_vd if is_class_major(embedding) else w_dv
  embedding.weight_split_dims_mapping.wt = weight
  embedding.activation_split_dims_mapping.out = mappings.a_blv
  _shard_lookup(embedding, mappings)


def _shard_lookup(embedding: LayerTpl, mappings: Mappings) -> None:
  """Shards the looked-up embeddings, and makes lookups matrix products."""
  if stack_configs.has_field(embedding, 'lookup_style'):
    embedding.lookup_style = 'matmul'
  _set_existing(
    embedding.activation_split_dims_mapping,
    emb_out_split_dims_mapping=mappings.a_bld,
    extend_step_out=mappings.a_bd,
  )


def _set_existing(
  sharding: pax_fiddle.Config, **values: SplitDimsMapping
) -> None:
  """Sets those of the fields that the class of `sharding` has."""
  for name, value in values.items():
    if stack_configs.has_field(sharding, name):
      setattr(sharding, name, value)


def _shard_attention(attention: LayerTpl, mappings: Mappings) -> None:
  weights = attention.weight_split_dims_mapping
  w_dnh, a_blnh, a_blh = mappings.w_dnh, mappings.a_blnh, mappings.a_blh
  weights.proj = w_dnh
  if w_dnh is not None:
    weights.dconv = [w_dnh[1], None]
    _set_existing(weights, proj_headless=[w_dnh[0], w_dnh[2]])
  if a_blh is None and a_blnh is not None:
    a_blh = [a_blnh[0], a_blnh[1], a_blnh[3]]
  _set_existing(
    attention.activation_split_dims_mapping,
    blnh=a_blnh,
    blh=a_blh,
    bld=mappings.a_bld,
    bd=mappings.a_bd,
  )


def _shard_feed_forward(feed_forward: LayerTpl, mappings: Mappings) -> None:
  weights = feed_forward.weight_split_dims_mapping
  weights.ffn0 = mappings.w_df
  if mappings.w_df is not None:
    weights.ffn1 = [mappings.w_df[1], mappings.w_df[0]]
  activations = feed_forward.activation_split_dims_mapping
  activations.ffn0 = mappings.a_blf
  activations.ffn0_extend_step = mappings.a_bf
  activations.ffn1 = mappings.a_bld
  activations.ffn1_extend_step = mappings.a_bd


def _shard_layer_inputs(layer_inputs: LayerTpl, mappings: Mappings) -> None:
  """Shards the embeddings of all layers over columns alone.

  With its classes sharded the lookup would sum embeddings over their devices.
  """
  embedding, proj = layer_inputs.embedding_tpl, layer_inputs.proj_tpl
  if mappings.w_vd is not None:
    columns = base_layer.merge_splits([mappings.w_vd[1], mappings.w_vd[0]])
    embedding.weight_split_dims_mapping.wt = [None, columns]
  proj.weight_split_dims_mapping.wt = mappings.w_df
  if mappings.a_bld is not None:
    # Layers are split from the last dimension.
    split = [*mappings.a_bld[:2], None]
    embedding.activation_split_dims_mapping.emb_out_split_dims_mapping = split
    proj.activation_split_dims_mapping.out = split


def _shard_layer_input_branch(branch: LayerTpl, mappings: Mappings) -> None:
  gate, proj = branch.gate_tpl, branch.proj_tpl
  gate.weight_split_dims_mapping.wt = mappings.w_df
  gate.activation_split_dims_mapping.out = mappings.a_blf
  if mappings.w_df is not None:
    proj.weight_split_dims_mapping.wt = [mappings.w_df[1], mappings.w_df[0]]
  proj.activation_split_dims_mapping.out = mappings.a_bld


def _shard_moe(moe: LayerTpl, mappings: Mappings) -> None:
  weights = moe.weight_split_dims_mapping
  weights.me = [None, None]
  weights.emh = mappings.w_emh
  if mappings.w_emh is not None:
    expert, model, hidden = mappings.w_emh
    weights.ehm = [expert, hidden, model]
  if stack_configs.has_field(moe, 'shared_experts_tpl') and (
    moe.shared_experts_tpl is not None
  ):
    _shard_feed_forward(moe.shared_experts_tpl, mappings)
  activations = moe.activation_split_dims_mapping
  activations.egch = mappings.a_egch
  activations.egcm = mappings.a_egcm
  if mappings.a_bld is not None:
    # Groups partition the batch, so the batch axes shard them.
    group, mdl = mappings.a_bld[0], mappings.a_bld[2]
    activations.gs = [group, None]
    activations.gsm = [group, None, mdl]
    activations.gec = [group, None, None]
    activations.gsec = [group, None, None, None]
    activations.gecs = [group, None, None, None]
    activations.gecm = [group, None, None, mdl]


def _combine(*axes: Axis) -> Axis:
  """Returns the axes that are not None: None, one, or a tuple of several."""
  names = [name for axis in axes for name in py_utils.mesh_axes(axis)]
  if len(names) > 1:
    return tuple(names)
  return names[0] if names else None
