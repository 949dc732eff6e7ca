# SPDX-License-Identifier: Apache-2.0
"""Mesh and sharding annotations of language model tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pax import tasks_lib
from praxis import pax_fiddle, pytypes
from praxis.layers.transformer_models import model_sharding

Config = pax_fiddle.Config
NestedMap = pytypes.NestedMap
TaskConfig = Config[tasks_lib.SingleTask]


def set_sharding_annotations_v1(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """Shards weights over axes data and mdl, the batch over replica and data.

  Args:
    task_p: The task.
    training_optimized: Whether mdl shards activations between layers too.
    ici_mesh_shape: Mesh (replica, data, mdl) within a slice.
    dcn_mesh_shape: Mesh over slices; None for a single slice.
  """
  _set_mesh(task_p, ('replica', 'data', 'mdl'), ici_mesh_shape, dcn_mesh_shape)
  _shard_batch(task_p, ('replica', 'data'))
  _shard_lm(
    task_p,
    'set_sharding_params_v1',
    training_optimized=training_optimized,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
  )


def set_sharding_annotations_with_expert_parallelism(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """As v1, with an axis data_expert that shards experts and the batch.

  Args:
    task_p: The task.
    training_optimized: Whether mdl shards activations between layers too.
    ici_mesh_shape: Mesh (replica, data, data_expert, mdl) within a slice.
    dcn_mesh_shape: Mesh over slices; None for a single slice.
  """
  axes = ('replica', 'data', 'data_expert', 'mdl')
  _set_mesh(task_p, axes, ici_mesh_shape, dcn_mesh_shape)
  _shard_batch(task_p, axes[:-1])
  _shard_lm(
    task_p,
    'set_sharding_params_with_expert_parallelism',
    training_optimized=training_optimized,
    replica_axis='replica',
    data_axis='data',
    data_expert_axis='data_expert',
    mdl_axis='mdl',
  )


def set_sharding_annotations_with_context_parallelism(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """As v1, with an axis seq that shards sequences, and weights as data does.

  Args:
    task_p: The task.
    training_optimized: Whether mdl shards activations between layers too.
    ici_mesh_shape: Mesh (replica, data, seq, mdl) within a slice.
    dcn_mesh_shape: Mesh over slices; None for a single slice.
  """
  axes = ('replica', 'data', 'seq', 'mdl')
  _set_mesh(task_p, axes, ici_mesh_shape, dcn_mesh_shape)
  _shard_batch(task_p, axes[:2], 'seq')
  _shard_lm(
    task_p,
    'set_sharding_params_v1',
    training_optimized=training_optimized,
    replica_axis='replica',
    data_axis='data',
    seq_axis='seq',
    mdl_axis='mdl',
  )


def set_pipeline_sharding(
  task_p: TaskConfig,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int],
  *,
  emb_w_data_dims: str | tuple[str, ...],
  training_optimized: bool,
  inner_axis: str | None,
) -> None:
  """As v1, with an axis stage that shards the layers.

  Embedding and softmax are outside the pipeline: there, the stage axis shards
  the batch too.

  Args:
    task_p: The task.
    ici_mesh_shape: Mesh (stage, replica, data, [inner_axis,] mdl) within a
      slice.
    dcn_mesh_shape: Mesh over slices.
    emb_w_data_dims: Mesh axes of the model dimension of the embedding.
    training_optimized: Whether mdl shards activations between layers too.
    inner_axis: 'data_expert', 'seq', or None.
  """
  experts = ('data_expert',) if inner_axis == 'data_expert' else ()
  seq = 'seq' if inner_axis == 'seq' else None
  batch = ('stage', 'replica', 'data', *experts)
  inner = (seq, 'mdl') if seq else ('mdl',)
  _set_mesh(task_p, (*batch, *inner), ici_mesh_shape, dcn_mesh_shape)
  _shard_batch(task_p, batch, seq)
  axes = {'data_expert_axis': 'data_expert'} if experts else {'seq_axis': seq}
  _shard_lm(
    task_p,
    'set_sharding_params_with_expert_parallelism'
    if experts
    else 'set_sharding_params_v1',
    training_optimized=training_optimized,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    **axes,
  )
  lm_p = task_p.model.lm_tpl
  softmax_p, pipeline_p = lm_p.softmax_tpl, lm_p.stacked_transformer_tpl
  activations = [batch, seq, 'mdl']
  weights = [emb_w_data_dims, 'mdl']
  if model_sharding.is_class_major(softmax_p):
    weights.reverse()
  softmax_p.weight_split_dims_mapping.wt = weights
  softmax_p.activation_split_dims_mapping.out = activations
  embedding_p = lm_p.separate_embedding_tpl or softmax_p
  embedding_p.activation_split_dims_mapping.emb_out_split_dims_mapping = (
    activations
  )
  pipeline_p.weight_split_dims_mapping.stages = ['stage']
  pipeline_p.activation_split_dims_mapping.final_out = activations


def _set_mesh(
  task_p: TaskConfig,
  axis_names: tuple[str, ...],
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None,
) -> None:
  if len(ici_mesh_shape) != len(axis_names):
    raise ValueError(
      f'ici_mesh_shape must have one entry for each of {list(axis_names)}, got '
      f'{list(ici_mesh_shape)}'
    )
  task_p.model.set(
    ici_mesh_shape=list(ici_mesh_shape),
    dcn_mesh_shape=None if dcn_mesh_shape is None else list(dcn_mesh_shape),
    mesh_axis_names=list(axis_names),
  )


def _shard_batch(
  task_p: TaskConfig, batch_axes: tuple[str, ...], seq_axis: str | None = None
) -> None:
  """Shards the batch and the sequence dimension of all inputs."""
  task_p.train.inputs_split_mapping = NestedMap(
    map_1d=(batch_axes,), map_2d=(batch_axes, seq_axis)
  )


def _shard_lm(task_p: TaskConfig, method: str, **axes: Any) -> None:
  """Calls a sharding method of each network of the model, if it has any.

  They are those of a LanguageModel, a LanguageModelDistillation or a
  SequenceModel.
  """
  model_p = task_p.model
  for field in ('lm_tpl', 'teacher_lm_tpl', 'model_tpl'):
    network_p = getattr(model_p, field, None)
    if isinstance(network_p, Config):
      set_sharding_params = getattr(network_p.cls, method)
      model_p.set(
        **{
          field: set_sharding_params(
            network_p,
            mesh_axis_names=model_p.mesh_axis_names,
            ici_mesh_shape=model_p.ici_mesh_shape,
            dcn_mesh_shape=model_p.dcn_mesh_shape,
            **axes,
          )
        }
      )
