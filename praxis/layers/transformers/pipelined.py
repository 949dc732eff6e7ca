# SPDX-License-Identifier: Apache-2.0
"""A stack of transformer layers as a pipeline (GPipe, arXiv:1811.06965)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import pipeline
from praxis.layers.transformers import stacked, transformer_stack

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping

_NO_DECODING = (
  'PipelinedTransformer does not decode; load its checkpoint into '
  'PipelineCompatibleStackedTransformerRepeated'
)


class PipelinedTransformer(transformer_stack.TransformerStack):
  """Pipelines num_pipeline_stages copies of a stack over devices.

  Decoding is not supported; PipelineCompatibleStackedTransformerRepeated loads
  the same checkpoints and decodes.

  References: GPipe, https://arxiv.org/abs/1811.06965; GSPMD,
  https://arxiv.org/abs/2105.04663, section 3.3.
  """

  # The layers of one stage.
  pipeline_stage: LayerTpl = pax_fiddle.template_field(
    stacked.StackedTransformer
  )
  # Number of passes of each microbatch through all stages, with separate
  # weights; above 1 the pipeline is circular.
  circular_repeat: int = 1
  num_pipeline_stages: int | None = None
  # Number of microbatches per batch, or examples per microbatch: set one.
  num_pipeline_microbatches: int | None = None
  pipeline_microbatch_size: int | None = None
  # Fields of LayerwiseShardablePipelined.
  stream_io: bool = False
  pipeline_broadcast_inputs: bool = False
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_ITERATION_INPUT
  )
  enable_async_circular_transfer: bool = True
  bf16_accum_in_fp32: bool = False

  class WeightSharding(base_layer.WeightSharding):
    # The leading axis of stages.
    stages: SplitDimsMapping = (None,)

  class ActivationSharding(base_layer.ActivationSharding):
    # The output of the last stage for the whole batch.
    final_out: SplitDimsMapping = None

  def setup(self) -> None:
    if not self.num_pipeline_stages:
      raise ValueError(
        f'num_pipeline_stages must be set, got {self.num_pipeline_stages}'
      )
    self.create_child('pipeline', self._pipeline_tpl())

  def _run(
    self, inputs: Float[Array, 'B T D'], context: transformer_stack.LayerContext
  ) -> Float[Array, 'B T D']:
    self._refuse_layer_inputs(context)
    outputs = self.pipeline(inputs, *context)
    return self.shard(outputs, self.activation_split_dims_mapping.final_out)

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Raises NotImplementedError: pipelines do not decode."""
    raise NotImplementedError(_NO_DECODING)

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], context: transformer_stack.StepContext
  ) -> None:
    raise NotImplementedError(_NO_DECODING)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    raise NotImplementedError(_NO_DECODING)

  def _pipeline_tpl(self) -> LayerTpl:
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
