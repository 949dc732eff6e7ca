# SPDX-License-Identifier: Apache-2.0
"""Transformer layers as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import pipeline
from praxis.layers.transformers import stack, stacked

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping

_NO_STEPS = (
  'a PipelinedTransformer has no decoding steps; load its checkpoint into a '
  'PipelineCompatibleStackedTransformerRepeated'
)


class PipelinedTransformer(stack.TransformerStack):
  """Applies num_pipeline_stages copies of a stack, on devices of their own.

  It does not decode; from the same checkpoints does
  PipelineCompatibleStackedTransformerRepeated.
  """

  # The layers of one stage.
  pipeline_stage: LayerTpl = pax_fiddle.template_field(
    stacked.StackedTransformer
  )
  # How often a microbatch passes all stages, with other weights each time.
  circular_repeat: int = 1
  num_pipeline_stages: int | None = None
  # Into how many parts a batch is split, or how large they are: set one.
  num_pipeline_microbatches: int | None = None
  pipeline_microbatch_size: int | None = None
  # The fields below are those of the layers in praxis.layers.pipeline.
  stream_io: bool = False
  pipeline_broadcast_inputs: bool = False
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_ITERATION_INPUT
  )
  enable_async_circular_transfer: bool = True
  bf16_accum_in_fp32: bool = False

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the leading axis of stages.
    stages: SplitDimsMapping = (None,)

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # Of the output of the last stage, all microbatches joined.
    final_out: SplitDimsMapping = None

  def setup(self) -> None:
    if not self.num_pipeline_stages:
      raise ValueError(
        f'num_pipeline_stages must be set, got {self.num_pipeline_stages}'
      )
    self.create_child('pipeline', self._pipeline())

  def _run(
    self, inputs: Float[Array, 'B T D'], side: stack.SideInputs
  ) -> Float[Array, 'B T D']:
    outputs = self.pipeline(inputs, *side)
    split = self.activation_split_dims_mapping.final_out
    return base_layer.maybe_shard(outputs, split, self.mesh_axis_names)

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Raises NotImplementedError: a pipeline does not decode."""
    raise NotImplementedError(_NO_STEPS)

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], step: stack.StepInputs
  ) -> None:
    raise NotImplementedError(_NO_STEPS)

  def _each_decode_state(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    raise NotImplementedError(_NO_STEPS)

  def _pipeline(self) -> LayerTpl:
    layer = pax_fiddle.Config(pipeline.LayerwiseShardablePipelined)
    if self.circular_repeat > 1:
      layer = pax_fiddle.Config(
        pipeline.CircularLayerwiseShardablePipelined,
        circular_repeat=self.circular_repeat,
        enable_async_circular_transfer=self.enable_async_circular_transfer,
      )
    layer.set(
      num_stages=self.num_pipeline_stages,
      single_stage_body=self.pipeline_stage,
      num_microbatches=self.num_pipeline_microbatches,
      microbatch_size=self.pipeline_microbatch_size,
      unpack_summaries=True,
      stream_io=self.stream_io,
      pipeline_broadcast_inputs=self.pipeline_broadcast_inputs,
      checkpoint_policy=self.checkpoint_policy,
      bf16_accum_in_fp32=self.bf16_accum_in_fp32,
    )
    layer.weight_split_dims_mapping.stages = (
      self.weight_split_dims_mapping.stages
    )
    return layer
