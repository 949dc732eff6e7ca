# SPDX-License-Identifier: Apache-2.0
"""Inputs of each layer, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pax.huggingface import weight_layouts
from pax.huggingface.layers.activations import activation
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import transformer_models, transformers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerInputs:
  """The settings of the inputs of a model's layers."""

  num_layers: int
  # Dimension of the input of a layer.
  dims: int
  # Name of the activation of the gate in config.json.
  activation: str

  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer that computes them.

    Args:
      norm: That of the model.
    """
    return pax_fiddle.Config(
      transformer_models.LayerInputs, layer_input_dims=self.dims, ln_tpl=norm
    )

  def branch(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the branch of a layer.

    Args:
      norm: That of the model.
    """
    return pax_fiddle.Config(
      transformers.LayerInputBranch,
      layer_input_dims=self.dims,
      activation_tpl=activation(self.activation),
      ln_tpl=norm,
    )

  def weights(self, vocab_size: int, model_dims: int) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of the layer that computes them.

    Args:
      vocab_size: That of the model.
      model_dims: Dimension of the model.
    """
    target, dims = 'params/lm/layer_inputs', self.num_layers * self.dims
    yield weight_layouts.same(
      'model.embed_tokens_per_layer.weight',
      f'{target}/embedding/emb_var',
      *(vocab_size, dims),
    )
    yield weight_layouts.transposed(
      'model.per_layer_model_projection.weight',
      f'{target}/proj/w',
      *(dims, model_dims),
    )
    yield weight_layouts.same(
      'model.per_layer_projection_norm.weight',
      f'{target}/ln/scale',
      self.dims,
    )

  def branch_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of the branch of a layer.

    Args:
      source: Name of the transformer layer in the files.
      target: Path of the branch.
      model_dims: Dimension of the model.
    """
    yield weight_layouts.transposed(
      f'{source}.per_layer_input_gate.weight',
      f'{target}/gate/w',
      *(self.dims, model_dims),
    )
    yield weight_layouts.transposed(
      f'{source}.per_layer_projection.weight',
      f'{target}/proj/w',
      *(model_dims, self.dims),
    )
    yield weight_layouts.same(
      f'{source}.post_per_layer_input_norm.weight',
      f'{target}/ln/scale',
      model_dims,
    )
