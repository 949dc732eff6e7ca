# SPDX-License-Identifier: Apache-2.0
"""How the weights and activations of a language model are split.

Letters name dimensions: b batch, l length, d model, f hidden, n heads, h head
or hidden, v vocabulary, e expert, m model, g group, c capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from praxis import pax_fiddle
from praxis.layers import embedding_softmax
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


def set_sharding(lm_p: Any, mesh: Mesh, mappings: Mappings) -> Any:
  """Sets the mesh and the mappings of a TransformerLm Config; returns it."""
  lm_p.set(**{f.name: getattr(mesh, f.name) for f in dataclasses.fields(mesh)})
  _set_softmax(lm_p.softmax_tpl, mappings)
  if lm_p.separate_embedding_tpl is not None:
    embedding = lm_p.separate_embedding_tpl
    embedding.weight_split_dims_mapping.wt = mappings.w_vd
    _set_lookup(embedding, mappings)
  position_emb = lm_p.position_emb_tpl
  trainable = embedding_softmax.TrainablePositionalEmbedding
  if position_emb is not None and issubclass(position_emb.cls, trainable):
    position_emb.weight_split_dims_mapping.wt = mappings.w_df
    _set_lookup(position_emb, mappings)
  for block in blocks(lm_p.stacked_transformer_tpl):
    for layer in as_list(block.transformer_layer_params_tpl):
      _set_attention(layer.tr_atten_tpl, mappings)
      if layer.cross_atten_tpl is not None:
        _set_attention(layer.cross_atten_tpl, mappings)
      _set_feed_forward(layer.tr_fflayer_tpl, mappings)
    if block.moe_layer_tpl is not None:
      _set_experts(block.moe_layer_tpl, mappings)
  return lm_p


def blocks(stacked_tpl: Any) -> Iterator[Any]:
  """Yields the StackedTransformer Configs within a stack's Config.

  A repeated stack holds one as its `block`, a pipelined one as its
  `pipeline_stage`, which may be repeated in turn.
  """
  names = {f.name for f in pax_fiddle.fields_of(stacked_tpl.cls)}
  inner = [n for n in ('pipeline_stage', 'block') if n in names]
  if not inner:
    yield stacked_tpl
  for name in inner:
    for stage in as_list(getattr(stacked_tpl, name)):
      yield from blocks(stage)


def as_list(value: Any) -> list[Any]:
  """Returns a list of templates for one, or several."""
  return list(value) if isinstance(value, list | tuple) else [value]


def _set_softmax(softmax: Any, mappings: Mappings) -> None:
  if softmax is None:
    return
  class_major = (
    embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
    embedding_softmax.GShardSharedEmbeddingSoftmax,
  )
  w_vd = mappings.w_vd
  is_class_major = issubclass(softmax.cls, class_major)
  transposed = None if w_vd is None else [w_vd[1], w_vd[0]]
  softmax.weight_split_dims_mapping.wt = w_vd if is_class_major else transposed
  softmax.activation_split_dims_mapping.out = mappings.a_blv
  _set_lookup(softmax, mappings)


def _set_lookup(embedding: Any, mappings: Mappings) -> None:
  """Sets how vectors come out, and looks them up by products."""
  if 'lookup_style' in {f.name for f in pax_fiddle.fields_of(embedding.cls)}:
    embedding.lookup_style = 'matmul'
  sharding = embedding.activation_split_dims_mapping
  for name, value in (
    ('emb_out_split_dims_mapping', mappings.a_bld),
    ('extend_step_out', mappings.a_bd),
  ):
    if name in {f.name for f in pax_fiddle.fields_of(sharding.cls)}:
      setattr(sharding, name, value)


def _set_attention(attention: Any, mappings: Mappings) -> None:
  weights = attention.weight_split_dims_mapping
  weights.proj = mappings.w_dnh
  if mappings.w_dnh is not None:
    weights.dconv = [mappings.w_dnh[1], None]
  attention.activation_split_dims_mapping.blnh = mappings.a_blnh
  attention.activation_split_dims_mapping.bld = mappings.a_bld


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
  names = [
    name
    for axis in axes
    if axis is not None
    for name in ((axis,) if isinstance(axis, str) else axis)
  ]
  if len(names) > 1:
    return tuple(names)
  return names[0] if names else None
