# SPDX-License-Identifier: Apache-2.0
"""A Transformer language model with pipeline parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from pax import tasks_lib
from pax.tasks.lm import sharding_annotations
from pax.tasks.lm.model_params import lm_spmd
from praxis import pax_fiddle
from praxis.layers import transformers

Config = pax_fiddle.Config


class TransformerLmSpmdPipelineAdafactor(lm_spmd.TransformerLmSpmdAdafactor):
  """A Transformer language model with its layers in pipeline stages."""

  # Mesh (stage, replica, data, mdl) within a slice and over slices, with
  # data_expert or seq before mdl as in the base class.
  ICI_MESH_SHAPE: Sequence[int] | None = None
  DCN_MESH_SHAPE: Sequence[int] | None = [1, 1, 1, 1]
  # Mesh axes of the model dimension of the embedding.
  EMB_W_DATA_DIMS: str | tuple[str, ...] = 'data'

  NUM_STAGES: int | None = None
  # Number of groups of layers per stage; batches circulate as many times.
  CIRCULAR_REPEAT = 1
  # Exactly one of the two must be set. A size is in rows.
  MICROBATCH_SIZE: int | None = None
  NUM_MICROBATCHES: int | None = None
  # Whether inputs and outputs are sharded over the stages and streamed, instead
  # of replicated.
  STREAM_IO = False
  # Whether paddings, segments and masks move along with their microbatch,
  # instead of being gathered by every stage.
  PIPELINE_BROADCAST_INPUTS = False

  # The matmuls of a layer share gathered activations. By default XLA gathers
  # again for a matmul that is many instructions away.
  COMPILER_OPTIONS = {
    'tpu': {'xla_tpu_spmd_threshold_for_allgather_cse': 100_000}
  }

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: Stages, layers, microbatches and mesh do not fit together.
    """
    super().validate()
    num_stages = self._num_stages()
    ici_mesh_shape, dcn_mesh_shape = self._mesh_shapes()
    if num_stages < 1 or self.CIRCULAR_REPEAT < 1:
      raise ValueError(
        'NUM_STAGES and CIRCULAR_REPEAT must be at least 1, got '
        f'{num_stages} and {self.CIRCULAR_REPEAT}; without a pipeline use '
        'TransformerLmSpmdAdafactor'
      )
    if self.NUM_LAYERS % (num_stages * self.CIRCULAR_REPEAT):
      raise ValueError(
        f'NUM_LAYERS={self.NUM_LAYERS} must be a multiple of NUM_STAGES x '
        f'CIRCULAR_REPEAT = {num_stages} x {self.CIRCULAR_REPEAT}'
      )
    if (self.NUM_MICROBATCHES is None) == (self.MICROBATCH_SIZE is None):
      raise ValueError(
        'set one of NUM_MICROBATCHES and MICROBATCH_SIZE, got '
        f'{self.NUM_MICROBATCHES} and {self.MICROBATCH_SIZE}'
      )
    num_axes = 4 if self._inner_axis() is None else 5
    if {len(ici_mesh_shape), len(dcn_mesh_shape)} != {num_axes}:
      raise ValueError(
        f'the mesh of a pipeline must have {num_axes} axes, got '
        f'{ici_mesh_shape} x {dcn_mesh_shape}'
      )
    axis_size = ici_mesh_shape[0] * dcn_mesh_shape[0]
    if axis_size != num_stages:
      raise ValueError(
        f'the first mesh axis must have NUM_STAGES={num_stages} devices, '
        f'got {axis_size}'
      )

  def _num_stages(self) -> int:
    if self.NUM_STAGES is None:
      raise ValueError('NUM_STAGES must be set for a pipeline, got None')
    return self.NUM_STAGES

  def _mesh_shapes(self) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the mesh within a slice and over slices."""
    ici_mesh_shape, dcn_mesh_shape = self.ICI_MESH_SHAPE, self.DCN_MESH_SHAPE
    if ici_mesh_shape is None:
      raise ValueError('ICI_MESH_SHAPE must be set for a pipeline, got None')
    if dcn_mesh_shape is None:
      dcn_mesh_shape = [1] * len(ici_mesh_shape)
    return ici_mesh_shape, dcn_mesh_shape

  def _transformer_stack(
    self, num_layers: int
  ) -> Config[transformers.StackedTransformer]:
    """Returns a group of layers; each stage has CIRCULAR_REPEAT groups."""
    num_groups = self._num_stages() * self.CIRCULAR_REPEAT
    return super()._transformer_stack(num_layers // num_groups)

  def _maybe_repeat(self, stack_p: Config) -> Config:
    """Returns the pipeline with such stages."""
    return Config(
      transformers.PipelinedTransformer,
      pipeline_stage=super()._maybe_repeat(stack_p),
      circular_repeat=self.CIRCULAR_REPEAT,
      num_pipeline_stages=self.NUM_STAGES,
      num_pipeline_microbatches=self.NUM_MICROBATCHES,
      pipeline_microbatch_size=self.MICROBATCH_SIZE,
      stream_io=self.STREAM_IO,
      pipeline_broadcast_inputs=self.PIPELINE_BROADCAST_INPUTS,
      checkpoint_policy=self.CHECKPOINT_POLICY,
    )

  def _set_sharding(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    sharding_annotations.set_pipeline_sharding(
      task_p,
      *self._mesh_shapes(),
      emb_w_data_dims=self.EMB_W_DATA_DIMS,
      training_optimized=self.TRAINING_OPTIMIZED_SHARDING,
      inner_axis=self._inner_axis(),
    )

  def _inner_axis(self) -> str | None:
    """Returns the mesh axis between data and mdl."""
    if self.USE_EXPERT_PARALLEL:
      return 'data_expert'
    return 'seq' if self.CONTEXT_PARALLEL else None
