# SPDX-License-Identifier: Apache-2.0
"""How the weights and activations of transformer models are split.

Letters name dimensions: b batch, l length, d model, f hidden, n heads, h head
or hidden, v vocabulary, e expert, m model, g group, c capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from praxis import py_utils
from praxis.layers import embedding_softmax
from praxis.layers.transformer_models import stack_configs
from praxis.pytypes import SplitDimsMapping

Axis = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
  """The devices of a model."""

  # Sizes of the axes within a slice, and over slices.
  ici_mesh_shape: Sequence[int] | None
  dcn_mesh_shape: Sequence[int] | None = None
  # Names of the axes.
  mesh_axis_names: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mappings:
  """One split-dims mapping for each kind of weight (w) and activation (a)."""

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
  # Those of a decoding step.
  a_bd: SplitDimsMapping = None
  a_bf: SplitDimsMapping = None
  a_bv: SplitDimsMapping = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
  """What each axis of a mesh is for."""

  # Splits the batch only.
  replica_axis: Axis
  # Splits the batch, and one dimension of each weight.
  data_axis: Axis
  # Splits the other dimension of each weight, and activations.
  mdl_axis: Axis
  # Splits the experts, and whatever data_axis splits.
  data_expert_axis: Axis = None
  # Splits the length of activations.
  seq_axis: Axis = None
  # What splits the batch, if not all axes for data.
  batch_axes: tuple[str, ...] | None = None
  # Whether activations between layers are split over mdl_axis too: memory for
  # time, as training wants.
  training_optimized: bool

  def mappings(self) -> Mappings:
    """Returns the mappings that fully shard weights over data and model."""
    data = _joined(self.data_axis, self.data_expert_axis)
    weight = _joined(data, self.seq_axis)
    batch = self.batch_axes or _joined(self.replica_axis, data)
    mdl, seq = self.mdl_axis, self.seq_axis
    if self.data_expert_axis is None:
      expert, group = self.data_axis, None
      group_in_training = None
    else:
      expert, group = self.data_expert_axis, self.data_axis
      group_in_training = _joined(self.replica_axis, self.data_axis)
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


def set_v1(
  model_p: Any,
  *,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
  mesh_axis_names: Sequence[str],
  **axes: Any,
) -> Any:
  """Splits a model's Config over data and model; returns it.

  `axes` are the fields of `Axes`.
  """
  mesh = Mesh(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
  )
  return set_sharding(model_p, mesh, Axes(**axes).mappings())


def set_custom(
  model_p: Any,
  *,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
  mesh_axis_names: Sequence[str],
  **mappings: Any,
) -> Any:
  """Splits a model's Config as `mappings` say; returns it.

  `mappings` are the fields of `Mappings`.
  """
  mesh = Mesh(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
  )
  return set_sharding(model_p, mesh, Mappings(**mappings))


def set_sharding(model_p: Any, mesh: Mesh, mappings: Mappings) -> Any:
  """Sets the mesh and the mappings of a model's Config; returns it.

  Which templates there are, fields whose names end alike say: of softmaxes,
  embeddings, positions, n-grammers and stacks.
  """
  for field in dataclasses.fields(mesh):
    setattr(model_p, field.name, getattr(mesh, field.name))
  for table in _templates(model_p, 'softmax_tpl', 'embedding_tpl'):
    _set_table(table, mappings)
  for ngrammer in _templates(model_p, 'ngrammer_tpl'):
    ngrammer.weight_split_dims_mapping.wt = mappings.w_vd
  trainable = embedding_softmax.TrainablePositionalEmbedding
  for position_emb in _templates(model_p, 'position_emb_tpl'):
    if issubclass(position_emb.cls, trainable):
      position_emb.weight_split_dims_mapping.wt = mappings.w_df
      _set_lookup(position_emb, mappings)
  for stack in _templates(model_p, 'stacked_transformer_tpl'):
    for block in stack_configs.stacked_transformers(stack):
      _set_block(block, mappings)
  return model_p


def is_class_major(table: Any) -> bool:
  """Returns whether a softmax or an embedding has a weight [V, D]."""
  return issubclass(
    table.cls,
    (
      embedding_softmax.Embedding,
      embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
      embedding_softmax.GShardSharedEmbeddingSoftmax,
    ),
  )


def _templates(model_p: Any, *endings: str) -> Iterator[Any]:
  """Yields what is set of the fields whose names end so."""
  for name in stack_configs.field_names(model_p):
    if name.endswith(endings) and getattr(model_p, name) is not None:
      yield getattr(model_p, name)


def _set_block(block: Any, mappings: Mappings) -> None:
  for layer in stack_configs.as_list(block.transformer_layer_params_tpl):
    _set_attention(layer.tr_atten_tpl, mappings)
    if layer.cross_atten_tpl is not None:
      _set_attention(layer.cross_atten_tpl, mappings)
    _set_feed_forward(layer.tr_fflayer_tpl, mappings)
  if block.moe_layer_tpl is not None:
    _set_experts(block.moe_layer_tpl, mappings)


def _set_table(table: Any, mappings: Mappings) -> None:
  """Sets a softmax or an embedding: [V, D], or else [D, V]."""
  w_vd = mappings.w_vd
  transposed = None if w_vd is None else [w_vd[1], w_vd[0]]
  wt = w_vd if is_class_major(table) else transposed
  table.weight_split_dims_mapping.wt = wt
  table.activation_split_dims_mapping.out = mappings.a_blv
  _set_lookup(table, mappings)


def _set_lookup(embedding: Any, mappings: Mappings) -> None:
  """Sets how vectors come out, and looks them up by products."""
  if stack_configs.has(embedding, 'lookup_style'):
    embedding.lookup_style = 'matmul'
  _set_present(
    embedding.activation_split_dims_mapping,
    emb_out_split_dims_mapping=mappings.a_bld,
    extend_step_out=mappings.a_bd,
  )


def _set_present(sharding: Any, **values: Any) -> None:
  """Sets those of `values` that `sharding` has fields for."""
  for name, value in values.items():
    if stack_configs.has(sharding, name):
      setattr(sharding, name, value)


def _set_attention(attention: Any, mappings: Mappings) -> None:
  weights = attention.weight_split_dims_mapping
  w_dnh, a_blnh, a_blh = mappings.w_dnh, mappings.a_blnh, mappings.a_blh
  weights.proj = w_dnh
  if w_dnh is not None:
    weights.dconv = [w_dnh[1], None]
    _set_present(weights, proj_headless=[w_dnh[0], w_dnh[2]])
  if a_blh is None and a_blnh is not None:
    a_blh = [a_blnh[0], a_blnh[1], a_blnh[3]]
  _set_present(
    attention.activation_split_dims_mapping,
    blnh=a_blnh,
    blh=a_blh,
    bld=mappings.a_bld,
    bd=mappings.a_bd,
  )


def _set_feed_forward(feed_forward: Any, mappings: Mappings) -> None:
  weights = feed_forward.weight_split_dims_mapping
  weights.ffn0 = mappings.w_df
  if mappings.w_df is not None:
    weights.ffn1 = [mappings.w_df[1], mappings.w_df[0]]
  activations = feed_forward.activation_split_dims_mapping
  activations.ffn0 = mappings.a_blf
  activations.ffn0_extend_step = mappings.a_bf
  activations.ffn1 = mappings.a_bld
  activations.ffn1_extend_step = mappings.a_bd


def _set_experts(moe: Any, mappings: Mappings) -> None:
  weights = moe.weight_split_dims_mapping
  weights.me = [None, None]
  weights.emh = mappings.w_emh
  if mappings.w_emh is not None:
    expert, model, hidden = mappings.w_emh
    weights.ehm = [expert, hidden, model]
  activations = moe.activation_split_dims_mapping
  activations.egch = mappings.a_egch
  activations.egcm = mappings.a_egcm
  if mappings.a_bld is not None:
    # Groups are parts of the batch, so the batch's axes split them.
    group, mdl = mappings.a_bld[0], mappings.a_bld[2]
    activations.gs = [group, None]
    activations.gsm = [group, None, mdl]
    activations.gec = [group, None, None]
    activations.gsec = [group, None, None, None]
    activations.gecs = [group, None, None, None]
    activations.gecm = [group, None, None, mdl]


def _joined(*axes: Axis) -> Axis:
  """Returns one axis, or a tuple of several, for those that are not None."""
  names = [name for axis in axes for name in py_utils.mesh_axes(axis)]
  if len(names) > 1:
    return tuple(names)
  return names[0] if names else None
