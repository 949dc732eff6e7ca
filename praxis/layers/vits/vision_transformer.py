# SPDX-License-Identifier: Apache-2.0
"""Vision transformer: patch embedding, transformer, output head."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightInit
from praxis.layers import embedding_softmax, transformers
from praxis.layers.vits.entry_exit import VitEntryLayers, VitExitLayers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class VisionTransformer(base_layer.BaseLayer):
  """Vision transformer (ViT, arXiv:2010.11929)."""

  # Patch embedding; None if the inputs are token embeddings.
  entry_layers_tpl: LayerTpl | None = template_field(VitEntryLayers)
  # Transformer encoder; required.
  transformer_layers_tpl: LayerTpl | None = template_field(
    transformers.StackedTransformer
  )
  # Output head; None returns the outputs of the transformer.
  exit_layers_tpl: LayerTpl | None = template_field(VitExitLayers)
  # Shards the batch of entry and exit over all mesh axes.
  full_data_parallel_on_entry_exit: bool = False

  class ActivationSharding(base_layer.ActivationSharding):
    # Inputs and outputs of the transformer [B, N, D].
    network_inputs: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    if self.transformer_layers_tpl is None:
      raise ValueError(
        f'VisionTransformer {self.name!r} needs transformer_layers_tpl, got '
        'None; only entry and exit can be left out'
      )
    if self.entry_layers_tpl is not None:
      self.create_child('entry_stack', self.entry_layers_tpl)
    self.create_child('transformers_stack', self.transformer_layers_tpl)
    if self.exit_layers_tpl is not None:
      self.create_child('exit_stack', self.exit_layers_tpl)

  def shard_entry_exit(self, x: Num[Array, '*shape']) -> Num[Array, '*shape']:
    """Shards the batch of `x` if `full_data_parallel_on_entry_exit` is set."""
    if (
      self.mesh_axis_names is None or not self.full_data_parallel_on_entry_exit
    ):
      return x
    return self.shard(x, [self.mesh_axis_names] + [None] * (x.ndim - 1))

  def __call__(
    self,
    inputs: Num[Array, 'B ...'],
    paddings: Num[Array, 'B N'] | None = None,
    segment_pos: Int[Array, 'B N'] | None = None,
  ) -> Float[Array, 'B ...']:
    """Returns the outputs of the head: [B, O] if pooled.

    Args:
      inputs: images [B, H, W, C], or patches [B, N, P].
      paddings: 1 for padded patches.
      segment_pos: position of each patch in its segment.
    """
    mapping = self.activation_split_dims_mapping.network_inputs
    features = inputs
    if self.entry_layers_tpl is not None:
      features = self.entry_stack(self.shard_entry_exit(features))
      features = self.shard(self.shard_entry_exit(features), mapping)
    if paddings is None:
      paddings = jnp.zeros(features.shape[:-1], features.dtype)
    features = self.transformers_stack(
      features, paddings, segment_pos=segment_pos
    )
    if self.exit_layers_tpl is not None:
      features = self.shard_entry_exit(self.shard(features, mapping))
      features = self.shard_entry_exit(self.exit_stack(features))
    return features


def build_vision_transformer_hparams_for_test(
  pos_emb_shapes: tuple[int, int],
  patch_size: int,
  image_channels: int,
  model_dims: int,
  mlp_dims: int,
  num_xformer_layers: int,
  num_heads: int,
) -> pax_fiddle.Config[VisionTransformer]:
  """Returns the Config of a vision transformer for tests.

  Args:
    pos_emb_shapes: rows and columns of the grid of position embeddings.
    patch_size: height and width of a patch in pixels.
    image_channels: channels of the images.
    model_dims: dimension of the tokens.
    mlp_dims: hidden dimension of the feed-forward layers.
    num_xformer_layers: number of transformer layers.
    num_heads: number of attention heads.
  """
  pos_emb = pax_fiddle.Config(
    embedding_softmax.TrainablePositionalEmbedding,
    max_seq_length=math.prod(pos_emb_shapes),
    embedding_dims=model_dims,
    params_init=WeightInit.Gaussian(scale=0.02),
  )
  entry = pax_fiddle.Config(
    VitEntryLayers,
    pos_emb_shapes=pos_emb_shapes,
    patch_size=patch_size,
    input_dims=patch_size**2 * image_channels,
    output_dims=model_dims,
    pos_emb_tpl=pos_emb,
  )
  stack = pax_fiddle.Config(
    transformers.StackedTransformer,
    model_dims=model_dims,
    hidden_dims=mlp_dims,
    num_heads=num_heads,
    mask_self_attention=False,
    use_cross_attention=False,
    packed_input=False,
    num_layers=num_xformer_layers,
  )
  attention = stack.transformer_layer_params_tpl.tr_atten_tpl
  attention.internal_enable_per_dim_scale = False
  return pax_fiddle.Config(
    VisionTransformer,
    name='vit',
    entry_layers_tpl=entry,
    transformer_layers_tpl=stack,
    exit_layers_tpl=pax_fiddle.Config(
      VitExitLayers, hidden_dim=model_dims, output_dim=model_dims
    ),
  )
