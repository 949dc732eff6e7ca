# SPDX-License-Identifier: Apache-2.0
"""A language model whose layers are stages of a pipeline."""

from __future__ import annotations

from pax import tasks_lib
from pax.tasks.lm import task_parts
from pax.tasks.lm.model_params import lm_spmd
from praxis import pax_fiddle
from praxis.layers import transformers

Config = pax_fiddle.Config


class TransformerLmSpmdPipelineAdafactor(lm_spmd.TransformerLmSpmdAdafactor):
  """A Transformer language model whose layers are stages of a pipeline."""

  # Stages, each of which holds CIRCULAR_REPEAT groups of layers.
  NUM_STAGES = None
  CIRCULAR_REPEAT = 1
  PIPELINE_BROADCAST_INPUTS = False
  # One of the two says how a batch is cut for the pipeline.
  NUM_MICROBATCHES = None
  MICROBATCH_SIZE = None
  # Whether inputs flow through the stages rather than lie on all of them.
  STREAM_IO = False

  # Mesh (stage, replica, data, mdl) within a slice, and over slices.
  ICI_MESH_SHAPE = None
  DCN_MESH_SHAPE = [1, 1, 1, 1]
  # Mesh axes that split the model dimension of the embedding.
  EMB_W_DATA_DIMS = 'data'

  def task(self) -> Config[tasks_lib.SingleTask]:
    self._check_stages()
    return super().task()

  def _check_stages(self) -> None:
    """Raises ValueError where stages, layers and mesh do not fit."""
    if self.NUM_STAGES is None:
      raise ValueError('NUM_STAGES must be set for a pipeline')
    if self.ICI_MESH_SHAPE is None:
      raise ValueError('ICI_MESH_SHAPE must be set for a pipeline')
    if self.NUM_LAYERS % (self.NUM_STAGES * self.CIRCULAR_REPEAT):
      raise ValueError(
        f'NUM_LAYERS={self.NUM_LAYERS} must be a multiple of NUM_STAGES x '
        f'CIRCULAR_REPEAT = {self.NUM_STAGES} x {self.CIRCULAR_REPEAT}'
      )
    if (self.NUM_MICROBATCHES is None) == (self.MICROBATCH_SIZE is None):
      raise ValueError(
        'set one of NUM_MICROBATCHES and MICROBATCH_SIZE, got '
        f'{self.NUM_MICROBATCHES} and {self.MICROBATCH_SIZE}'
      )
    axes = 4 if self._inner_axis() is None else 5
    if len(self.ICI_MESH_SHAPE) != axes or len(self.DCN_MESH_SHAPE) != axes:
      raise ValueError(
        f'the mesh of a pipeline must have {axes} axes, got '
        f'{self.ICI_MESH_SHAPE} x {self.DCN_MESH_SHAPE}'
      )
    if (on_axis := self.ICI_MESH_SHAPE[0] * self.DCN_MESH_SHAPE[0]) != (
      self.NUM_STAGES
    ):
      raise ValueError(
        f'the first mesh axis must have NUM_STAGES={self.NUM_STAGES} devices, '
        f'got {on_axis}'
      )

  def _stack(self, num_layers: int) -> Config[transformers.StackedTransformer]:
    """Returns the layers of one stage."""
    groups = self.NUM_STAGES * self.CIRCULAR_REPEAT
    return super()._stack(num_layers // groups)

  def _repeat_or_not(self, stack_p: Config) -> Config:
    """Returns the pipeline of such stages."""
    return Config(
      transformers.PipelinedTransformer,
      pipeline_stage=super()._repeat_or_not(stack_p),
      circular_repeat=self.CIRCULAR_REPEAT,
      num_pipeline_stages=self.NUM_STAGES,
      num_pipeline_microbatches=self.NUM_MICROBATCHES,
      pipeline_microbatch_size=self.MICROBATCH_SIZE,
      stream_io=self.STREAM_IO,
      pipeline_broadcast_inputs=self.PIPELINE_BROADCAST_INPUTS,
      checkpoint_policy=self.CHECKPOINT_POLICY,
    )

  def _set_sharding(self, task_p: Config[tasks_lib.SingleTask]) -> None:
    task_parts.set_pipeline_sharding(
      task_p,
      self.ICI_MESH_SHAPE,
      self.DCN_MESH_SHAPE,
      emb_w_data_dims=self.EMB_W_DATA_DIMS,
      training_optimized=self.TRAINING_OPTIMIZED_SHARDING,
      inner_axis=self._inner_axis(),
    )

  def _inner_axis(self) -> str | None:
    """Returns the mesh axis between data and mdl."""
    if self.USE_EXPERT_PARALLEL:
      return 'data_expert'
    return 'seq' if self.CONTEXT_PARALLEL else None
