# SPDX-License-Identifier: Apache-2.0
"""Attention with quantized projections or quantized products."""

from __future__ import annotations

from typing import ClassVar

import flax.linen as nn
from jaxtyping import Array, Float, Shaped

from praxis import pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import (
  attentions,
  base_ops,
  conformers,
  multi_query_attention,
)
from praxis.layers.quantization import (
  low_rank_residual,
  operations,
  quantization_hparams,
  quantized_layer_mixin,
  quantizer,
)

__getattr__ = module_getattr(__name__)

ActQuantizationParams = quantization_hparams.ActQuantizationParams
QuantizationType = quantization_hparams.QuantizationType


class AttentionProjection(
  attentions.AttentionProjection,
  quantized_layer_mixin.SparseQuantizedLayerMixin,
):
  """A quantized projection to the heads, or from heads to the output."""

  _PACK_4BIT_DIM = 0

  def setup(self) -> None:
    params = self.quantization
    if self.attention_combine_dims and params:
      if params.weight_params.block_size:
        raise ValueError(
          'block_size must be 0 with attention_combine_dims=True, got '
          f'{params.weight_params.block_size}'
        )
    super().setup()

  def product_weight(self) -> Float[Array, '...'] | None:
    """Returns None: the weight may be integers, sparse, or have a residual."""

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    heads = 'M' if self.attention_combine_dims else 'NH'
    weight = ''.join(self._in_order('D', heads))
    if self.is_output_projection:
      return {'w': f'...{heads},{weight}->...D'}
    return {'w': f'...D,{weight}->...{heads}'}


class AttentionProjectionLoRA(
  low_rank_residual.LowRankResidual, AttentionProjection
):
  """A quantized projection plus two float ones through a low rank."""

  # Whether an output projection replaces the larger of the number of heads and
  # the head dimension by the low rank, or both of them.
  max_reduction: bool = True

  def _base_einsum(self) -> low_rank_residual.BaseEinsum:
    weight = ''.join(self._in_order('D', *'NH'))
    equation, sizes = f'...D,{weight}->...NH', self._sizes()
    ends = {'pre': self.input_dim, 'post': self.dim_per_head}
    if self.is_output_projection:
      equation = f'...NH,{weight}->...D'
      ends = {'pre': self.dim_per_head, 'post': self.input_dim}
    return low_rank_residual.BaseEinsum(
      equation=equation,
      weight_shape=self._in_order(*sizes),
      split=self.weight_split_dims_mapping.wt,
      norm_dims=ends,
    )


class CombinedQKVProjectionLayer(
  attentions.CombinedQKVProjectionLayer,
  quantized_layer_mixin.SparseQuantizedLayerMixin,
):
  """A quantized projection to queries, keys and values with one weight."""

  _PACK_4BIT_DIM = 1
  _HAS_BLOCKS = False
  _HAS_ROW_SCALES = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    heads = 'M' if self.attention_combine_dims else 'NH'
    return {'w': f'...D,KD{heads}->...K{heads}'}


class OneHeadedAttentionProjection(
  multi_query_attention.OneHeadedAttentionProjection,
  quantized_layer_mixin.QuantizedLayerMixin,
):
  """A quantized projection to one head."""

  _PACK_4BIT_DIM = 0
  _HAS_BLOCKS = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'w': '...D,DH->...H'}


class AqtEinsumOp(base_ops.EinsumOp):
  """An einsum of two activations, both quantized (AQT)."""

  # Quantization of both activations; None disables it.
  act_params: ActQuantizationParams | None = None

  def setup(self) -> None:
    create = quantizer.create_tensor_quantizer
    self.create_child('quantizer', create('quantizer', self.act_params))

  def __call__(self, equation: str, *args: Array) -> Shaped[Array, '...']:
    left, right = args
    return operations.aqt_einsum(
      equation,
      left,
      right,
      lhs_quantizer=self.quantizer,
      rhs_quantizer=self.quantizer,
    )


class DotProductAttention(
  attentions.DotProductAttention, quantizer.QuantizationLayer
):
  """Attention whose two products of activations are quantized."""

  _EINSUM_CHILDREN: ClassVar[tuple[str, ...]] = ('qk_einsum', 'pv_einsum')

  def setup(self) -> None:
    params = self.quantization
    if not params or params.quantization_type != QuantizationType.AQT:
      actual = params and params.quantization_type
      raise NotImplementedError(
        f'quantization_type of {type(self).__name__} must be AQT, got '
        f'{actual}; quantize its projections by their templates otherwise'
      )
    super().setup()

  @nn.nowrap
  def create_child(
    self, name: str, params: pax_fiddle.Config, *, skip_clone: bool = False
  ) -> nn.Module:
    """Creates a child; the two products become AqtEinsumOp."""
    if name in self._EINSUM_CHILDREN:
      act_params = self._quantization.act_params
      params = pax_fiddle.Config(AqtEinsumOp, act_params=act_params)
    return super().create_child(name, params, skip_clone=skip_clone)


class DotProductAttentionWithContext(
  DotProductAttention, conformers.DotProductAttentionWithContext
):
  """Attention to a window whose two products are quantized."""
