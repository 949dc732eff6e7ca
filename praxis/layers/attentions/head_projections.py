# SPDX-License-Identifier: Apache-2.0
"""The projections of an attention layer to and from heads, and their sharding.

Shapes as in dot_product.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers.attentions import attention_core, kv_cache, projections

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

QueryHeads = attention_core.QueryHeads
KeyHeads = attention_core.KeyHeads


class HeadProjections(kv_cache.CachedAttention):
  """Projects inputs to queries, keys and values, and attended values back."""

  # Dimension of the inputs, or a mapping by 'query', 'key' and 'value'.
  input_dim: int | Mapping[str, int] = 0
  # Dimension of all heads together; ignored when dim_per_head is set.
  hidden_dim: int = 0
  num_heads: int = 1
  # Dimension of a head; hidden_dim / num_heads when None.
  dim_per_head: int | None = None
  # The projections to heads and from heads to the output.
  proj_tpl: LayerTpl = template_field(projections.AttentionProjection)
  # Initializes separate projections with GShard's Gaussian deviations.
  internal_gshard_gaussian_init: bool = False
  # Whether one weight projects the same input to queries, keys and values.
  combine_qkv: bool = False
  combined_qkv_proj_tpl: LayerTpl = template_field(
    projections.CombinedQKVProjectionLayer
  )
  # Whether values are the projected keys, before their norm and rotation (Gemma
  # 4).
  use_keys_as_values: bool = False
  use_bias: bool = True
  # Whether the output projection has a bias; None: as the others.
  use_output_bias: bool | None = None
  # Whether attended values are multiplied by the sigmoid of a projection of the
  # inputs of queries (arXiv:2505.06708).
  use_output_gate: bool = False
  # Whether the output projection stores its weight as [N, H, D].
  output_proj_use_nhd_shape: bool = False
  # Whether `blnh` also shards projections of decoding steps.
  decoding_maybe_shard_projections: bool = False

  class WeightSharding(base_layer.WeightSharding):
    # Sharding of projections [D, N, H].
    proj: SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Shardings of tensors with heads, and of the output.
    blnh: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  def _create_projections(self) -> None:
    if self.use_keys_as_values and self.combine_qkv:
      raise ValueError(
        'combine_qkv must be False with use_keys_as_values=True, got True;'
        ' values have no projection of their own'
      )
    if self.combine_qkv:
      combined = self._with_heads(self.combined_qkv_proj_tpl)
      combined.input_dim = self._input_dim('query')
      self.create_child('combined_qkv', combined)
    else:
      for name in self._separate_projections():
        self.create_child(name, self._input_projection(name))
    if self.use_output_gate:
      self.create_child('output_gate', self._input_projection('query'))
    self.create_child('post', self._output_projection())

  def _separate_projections(self) -> tuple[str, ...]:
    """Returns the names of the projections to heads."""
    names = attention_core.INPUT_NAMES
    return names[:2] if self.use_keys_as_values else names

  def _input_projection(self, name: str) -> LayerTpl:
    input_dim = self._input_dim(name)
    proj = self._with_heads(self.proj_tpl).set(input_dim=input_dim)
    if self.internal_gshard_gaussian_init:
      fan_in = input_dim * self._head_dim() if name == 'query' else input_dim
      proj.params_init = base_layer.WeightInit.Gaussian(fan_in**-0.5)
    return proj

  def _output_projection(self) -> LayerTpl:
    proj = self._with_heads(self.proj_tpl).set(
      input_dim=self._input_dim('query'),
      is_output_projection=True,
      use_nhd_shape=self.output_proj_use_nhd_shape,
    )
    if self.use_output_bias is not None:
      proj.use_bias = self.use_output_bias
    split = proj.weight_split_dims_mapping
    if self.output_proj_use_nhd_shape and split.wt:
      split.wt = [*split.wt[1:], split.wt[0]]
    if self.internal_gshard_gaussian_init:
      fan_in = self.num_heads * self._head_dim()
      proj.params_init = base_layer.WeightInit.Gaussian(fan_in**-0.5)
    return proj

  def _with_heads(self, template: LayerTpl) -> LayerTpl:
    proj = template.clone().set(
      num_heads=self.num_heads,
      dim_per_head=self._head_dim(),
      use_bias=self.use_bias,
    )
    proj.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.proj
    return proj

  def _input_dim(self, name: str) -> int:
    dims = self.input_dim
    return dims[name] if isinstance(dims, Mapping) else dims

  def _head_dim(self) -> int:
    if self.dim_per_head is not None:
      return self.dim_per_head
    return self.hidden_dim // self.num_heads

  def _project(
    self, query_vec: Array, key_vec: Array, value_vec: Array
  ) -> tuple[QueryHeads, KeyHeads, KeyHeads]:
    if self.combine_qkv:
      is_same_input = query_vec is key_vec and query_vec is value_vec
      if not is_same_input and not self.is_initializing():
        raise ValueError(
          'query_vec, key_vec and value_vec must be the same array with '
          'combine_qkv=True; set combine_qkv=False for cross attention'
        )
      heads = self.combined_qkv(query_vec)
      names = ['combined_qkv_proj'] * 3
    else:
      if self.use_keys_as_values and not (
        key_vec is value_vec or self.is_initializing()
      ):
        raise ValueError(
          'value_vec must be key_vec with use_keys_as_values=True, got another'
          ' array; set use_keys_as_values=False'
        )
      layers = self._separate_projections()
      inputs = query_vec, key_vec, value_vec
      heads = [
        getattr(self, x)(y) for x, y in zip(layers, inputs, strict=False)
      ]
      names = [f'{layer}_proj' for layer in layers]
    query, key, *values = (
      checkpoint_name(self._shard_heads(x), name)
      for x, name in zip(heads, names, strict=True)
    )
    return query, key, values[0] if values else key

  def _project_step(
    self, query_vec: Float[Array, 'B L D']
  ) -> tuple[Float[Array, 'B L N H'], Array, Array]:
    if self.combine_qkv:
      heads = self.combined_qkv.extend_step(query_vec)
    else:
      layers = (getattr(self, name) for name in self._separate_projections())
      heads = tuple(layer.extend_step(query_vec) for layer in layers)
    query, key, *values = map(self._shard_step_heads, heads)
    return query, key, values[0] if values else key

  def _project_output(
    self,
    encoded: QueryHeads,
    query_vec: Float[Array, 'B T D'],
    split: SplitDimsMapping,
  ) -> Float[Array, 'B T D']:
    """Returns the output projection of attended values.

    Args:
      encoded: the attended values.
      query_vec: inputs of the queries.
      split: sharding of the output.
    """
    if self.use_output_gate:
      gate = self._shard_blnh(self.output_gate(query_vec))
      encoded = encoded * jax.nn.sigmoid(gate)
    outputs = base_layer.maybe_shard(
      self.post(encoded), split, self.mesh_axis_names
    )
    return checkpoint_name(outputs, 'out_proj')

  def _step_output_split(self) -> SplitDimsMapping:
    split = self.activation_split_dims_mapping.bld
    return None if split is None else [split[0], None, split[2]]

  def _shard_heads(self, x: Float[Array, '...']) -> Float[Array, '...']:
    return self._shard_blnh(x)

  def _shard_blnh(self, x: Float[Array, 'B L N H']) -> Float[Array, 'B L N H']:
    split = self.activation_split_dims_mapping.blnh
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)

  def _shard_bnh(self, x: Float[Array, 'B N H']) -> Float[Array, 'B N H']:
    split = self.activation_split_dims_mapping.blnh
    split = split and [split[0], *split[2:]]
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)

  def _shard_step_heads(self, x: Float[Array, 'B L ...']) -> Array:
    split = self.activation_split_dims_mapping.blnh
    if not self.decoding_maybe_shard_projections or split is None:
      return x
    # Keys and values of a single head have no head axis.
    head_split = split[2:] if x.ndim == 4 else split[3:]
    split = [split[0], None, *head_split]
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)
