# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pax.huggingface import weight_layouts
from pax.huggingface.layers.activations import activation
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForward:
  """The settings of the feed-forward layers of a model."""

  hidden_dims: int
  # Name of the activation in config.json, that of gates if it has any.
  activation: str
  has_gates: bool = True
  has_bias: bool = False
  # Name of the tensors in the transformer layer.
  tensors: str = 'mlp'
  # Names of the projections if one has the gates and what they multiply, both
  # without biases: that one and that of outputs.
  fused_tensors: tuple[str, str] | None = None

  def layer(self) -> LayerTpl:
    """Returns the Config of the layer, without its norm."""
    return pax_fiddle.Config(
      transformers.TransformerFeedForward,
      has_bias=self.has_bias,
      use_gated_activation=self.has_gates,
      activation_tpl=activation(self.activation),
    )

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer.

    Args:
      source: Name of the transformer layer in the files.
      target: Path of the layer.
      model_dims: Dimension of the model.
    """
    source = f'{source}.{self.tensors}'
    dims = model_dims, self.hidden_dims
    if self.fused_tensors is None:
      yield from weight_layouts.feed_forward(
        source,
        target,
        *dims,
        has_gates=self.has_gates,
        has_bias=self.has_bias,
      )
    else:
      inputs, outputs = self.fused_tensors
      yield from weight_layouts.fused_feed_forward(
        f'{source}.{inputs}', f'{source}.{outputs}', target, *dims
      )
