# SPDX-License-Identifier: Apache-2.0
"""A stack of transformer layers repeated by a scan over stacked weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import repeats
from praxis.layers.transformers import stacked, transformer_stack

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping


class StackedTransformerRepeated(transformer_stack.TransformerStack):
  """Applies a block of layers x_times, by `repeats.Repeat`.

  The block is compiled once, and its activations are saved for the backward
  pass by `checkpoint_policy` only.
  """

  # The stack that is repeated.
  block: LayerTpl = pax_fiddle.template_field(stacked.StackedTransformer)
  # A stack before the first repetition, which has its own weights; None for
  # none.
  prefix: LayerTpl | None = pax_fiddle.template_field(None)
  # Fields of repeats.Repeat.
  x_times: int = 0
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  )
  unroll_in_decode: bool = True
  # Names of the loop and of the block in variable trees.
  repeat_layer_name: str = 'repeat'
  sublayer_name: str = 'sub'
  repeat_optimizer_dims_mapping: SplitDimsMapping = None
  nd_prefix_shape: Sequence[int] | None = None
  return_intermediate_outputs: bool = False
  collect_intermediate_outputs: bool = False
  scan_unroll: int = 1

  class WeightSharding(base_layer.WeightSharding):
    # The leading axes of all weights.
    block: SplitDimsMapping = None

  def setup(self) -> None:
    repeat = pax_fiddle.Config(
      repeats.Repeat,
      sub_tpl=self.block,
      x_times=self.x_times,
      unpack_summaries=True,
      checkpoint_policy=self.checkpoint_policy,
      unroll_in_decode=self.unroll_in_decode,
      sublayer_name=self.sublayer_name,
      optimizer_dims_mapping=self.repeat_optimizer_dims_mapping,
      nd_prefix_shape=self.nd_prefix_shape,
      return_intermediate_outputs=self.return_intermediate_outputs,
      collect_intermediate_outputs=self.collect_intermediate_outputs,
      scan_unroll=self.scan_unroll,
    )
    repeat.weight_split_dims_mapping.sub = self.weight_split_dims_mapping.block
    self.create_child(self.repeat_layer_name, repeat)
    if self.prefix is not None:
      self.create_child('prefix_layers', self.prefix)

  @property
  def repeat_layer(self) -> repeats.Repeat:
    """The loop over the repetitions."""
    return getattr(self, self.repeat_layer_name)

  def _run(
    self, inputs: Float[Array, 'B T D'], context: transformer_stack.LayerContext
  ) -> Any:
    """Returns the output of the last repetition.

    With return_intermediate_outputs those of all instead, [x_times, ...].
    """
    self._refuse_layer_inputs(context)
    if self.prefix is not None:
      inputs = self.prefix_layers(inputs, *context)
    return self.repeat_layer(inputs, *context)

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], context: transformer_stack.StepContext
  ) -> Any:
    self._refuse_layer_inputs(context)
    if self.prefix is not None:
      inputs = self.prefix_layers.extend_step(inputs, **context._asdict())
    return self.repeat_layer.extend_step(inputs, **context._asdict())

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    if self.prefix is not None:
      visit(self.prefix_layers)
    visit(self.repeat_layer)


class PipelineCompatibleStackedTransformerRepeated(StackedTransformerRepeated):
  """Repeats the stages of a PipelinedTransformer; loads its checkpoints.

  For a circular pipeline, nd_prefix_shape is [circular_repeat, num_stages].
  """

  repeat_layer_name: str = 'pipeline'
  sublayer_name: str = 'body'
