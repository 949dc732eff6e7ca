# SPDX-License-Identifier: Apache-2.0
"""Conformers: attention and convolution between two half feed-forwards."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import (
  activations,
  attentions,
  convolutions,
  normalizations,
  stochastics,
  transformers,
)
from praxis.layers.attentions import masks
from praxis.layers.transformers import norm_placement

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NormPosition = norm_placement.NormPosition
template_field = pax_fiddle.template_field


class DotProductAttentionWithContext(attentions.DotProductAttention):
  """Dot-product attention to a window around each position.

  All logits are computed and masked; LocalSelfAttention, which needs both
  limits, computes only those of its blocks.
  """

  # Number of visible positions up to and including the query's own, and after
  # it; unlimited when None.
  left_context: int | None = None
  right_context: int | None = None

  def _window(self) -> masks.ContextWindow | None:
    return masks.context_window(self.left_context, self.right_context)


class DotProductAttentionWithContextXL(attentions.DotProductAttentionXL):
  """Transformer-XL's attention to a window around each position."""

  # See DotProductAttentionWithContext.
  left_context: int | None = None
  right_context: int | None = None

  def _window(self) -> masks.ContextWindow | None:
    return masks.context_window(self.left_context, self.right_context)


_WINDOWED = (DotProductAttentionWithContext, DotProductAttentionWithContextXL)


class SelfAttentionWithNormAndResidual(base_layer.BaseLayer):
  """Self-attention with normalization and a residual connection."""

  # Factors of the attention's output and of the input in their sum.
  residual_weight: float = 1.0
  input_weight: float = 1.0
  # The attention and its norms.
  self_atten_tpl: LayerTpl = template_field(DotProductAttentionWithContext)
  norm_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  # Whether to normalize before the attention instead of after the residual
  # connection; None leaves it to norm_policy.
  pre_layer_norm: bool | None = True
  # Dropout probability of the attention's output.
  residual_dropout_prob: float = 0.0
  residual_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  # 'pre', 'post', 'post_skip' or 'primer_hybrid' if pre_layer_norm is None; see
  # transformers/norm_placement.py.
  norm_policy: str | None = None

  def setup(self) -> None:
    policies = (self.pre_layer_norm, self.norm_policy)
    policy = self.unified_norm_policy()
    if policies.count(None) != 1 or policy not in norm_placement.NORM_POLICIES:
      raise ValueError(
        f'SelfAttentionWithNormAndResidual {self.name!r} needs pre_layer_norm '
        f'or a norm_policy of {", ".join(norm_placement.NORM_POLICIES)}, and '
        f'not both, got pre_layer_norm={self.pre_layer_norm} and '
        f'norm_policy={self.norm_policy!r}'
      )
    for name in norm_placement.norm_names(policy, 'norm').values():
      self.create_child(name, self.norm_tpl.clone())
    self._create_self_atten()
    self.create_child(
      'residual_dropout',
      self.residual_dropout_tpl.clone().set(
        keep_prob=1.0 - self.residual_dropout_prob
      ),
    )

  def _create_self_atten(self) -> None:
    """Creates the child `self_atten`; quantized variants override this."""
    self.create_child('self_atten', self.self_atten_tpl.clone())

  def unified_norm_policy(self) -> str:
    """Returns the norm policy that pre_layer_norm or norm_policy sets."""
    if self.pre_layer_norm is None:
      return self.norm_policy or ''
    return 'pre' if self.pre_layer_norm else 'post_skip'

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'],
    atten_mask: Float[Array, '#B 1 #T T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Returns the weighted sum of the input and the attention's output.

    The additive `atten_mask` is combined with the mask of the paddings.
    """
    normed = self._normed(NormPosition.INPUT, inputs)
    mask = self._padding_mask(paddings, normed)
    if atten_mask is not None:
      mask = jnp.minimum(mask, atten_mask)
    outputs, _ = self.self_atten(normed, normed, normed, mask)
    outputs = self.residual_dropout(self._normed(NormPosition.OUTPUT, outputs))
    outputs = outputs * self.residual_weight + inputs * self.input_weight
    return self._normed(NormPosition.SUM, outputs)

  def _normed(
    self, position: NormPosition, x: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    names = norm_placement.norm_names(self.unified_norm_policy(), 'norm')
    return getattr(self, names[position])(x) if position in names else x

  def _padding_mask(
    self, paddings: Num[Array, 'B T'], inputs: Float[Array, 'B T D']
  ) -> Float[Array, 'B 1 #T T']:
    """Returns the mask of padded keys, and with a window of padded queries."""
    mask = attentions.convert_paddings_to_mask(paddings, inputs.dtype)
    attention = self.self_atten
    if isinstance(attention, _WINDOWED) and attention._window():
      mask = jnp.minimum(mask, jnp.swapaxes(mask, 2, 3))
    return mask


# The blocks between the feed-forwards, by layer_order.
_BLOCK_ORDERS = {
  'mhsa': ('trans_atten',),
  'conv': ('lconv',),
  'mhsa_before_conv': ('trans_atten', 'lconv'),
  'conv_before_mhsa': ('lconv', 'trans_atten'),
}


class Conformer(base_layer.BaseLayer):
  """Feed-forward, attention and convolution, feed-forward, normalization.

  Every block has a residual connection; those of the feed-forwards add half of
  their output.

  References: Conformer, https://arxiv.org/abs/2005.08100, section 2
  """

  # Dimension of the input; model_dims when None. Another dimension needs a
  # fflayer_start_tpl without residual connection.
  input_dims: int | None = None
  # Dimension of the output and of the activations between blocks.
  model_dims: int = 512
  # Number of positions the convolution kernel covers.
  kernel_size: int = 32
  # Activation of the feed-forwards, the factor of their output in the residual
  # sum, and their hidden dimension as a multiple of model_dims.
  ff_activation_tpl: pax_fiddle.Config[activations.BaseActivation] = (
    template_field(activations.Swish)
  )
  ff_residual_weight: float = 0.5
  ffn_dim_multiplier: int = 4
  # Number of attention heads.
  atten_num_heads: int = 8
  # 'mhsa' (attention), 'conv', 'mhsa_before_conv' or 'conv_before_mhsa'.
  layer_order: str = 'mhsa_before_conv'
  # Probability of every dropout; when None each has its own, 0 by default.
  dropout_prob: float | None = None
  conv_residual_dropout: float | None = None
  atten_residual_dropout: float | None = None
  ffn_residual_dropout: float | None = None
  atten_dropout: float | None = None
  ffn_relu_dropout: float | None = None
  # The blocks; None omits a feed-forward or the final norm.
  fflayer_start_tpl: LayerTpl | None = template_field(
    transformers.TransformerFeedForward
  )
  trans_atten_tpl: LayerTpl = template_field(SelfAttentionWithNormAndResidual)
  lconv_tpl: LayerTpl | None = template_field(convolutions.LightConv1D)
  fflayer_end_tpl: LayerTpl | None = template_field(
    transformers.TransformerFeedForward
  )
  # Whether the last feed-forward shares the weights of the first.
  fflayer_weight_sharing: bool = False
  final_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)

  def setup(self) -> None:
    self._check_settings()
    if self.fflayer_start_tpl is not None:
      start = self._feed_forward(self.fflayer_start_tpl)
      inputs = self.input_dims or self.model_dims
      start.input_dims = inputs
      if inputs != self.model_dims:
        start.output_dims = self.model_dims
      self.create_child('fflayer_start', start)
    if self.fflayer_end_tpl is not None and self.has_fflayer_end:
      end = self._feed_forward(self.fflayer_end_tpl)
      self.create_child('fflayer_end', end.set(input_dims=self.model_dims))
    blocks = _BLOCK_ORDERS[self.layer_order]
    if 'trans_atten' in blocks:
      self._create_trans_atten()
    if 'lconv' in blocks and self.lconv_tpl is not None:
      self._create_conv(self.lconv_tpl)
    if self.final_ln_tpl is not None:
      norm = self.final_ln_tpl.clone().set(dim=self.model_dims)
      self.create_child('final_ln', norm)

  @property
  def has_fflayer_start(self) -> bool:
    return self.fflayer_start_tpl is not None

  @property
  def has_fflayer_end(self) -> bool:
    """Whether the last feed-forward exists with separate weights."""
    return self.fflayer_end_tpl is not None and not self.fflayer_weight_sharing

  @property
  def has_final_ln(self) -> bool:
    return self.final_ln_tpl is not None

  def __call__(
    self,
    inputs: Float[Array, 'B T I'],
    paddings: Num[Array, 'B T'],
    atten_mask: Float[Array, '#B 1 #T T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Returns the output of the block.

    Args:
      inputs: of the block.
      paddings: 1 for padded positions.
      atten_mask: additive, combined with the mask of the paddings.

    Raises:
      ValueError: there is a mask and no attention.
    """
    blocks = _BLOCK_ORDERS[self.layer_order]
    if atten_mask is not None and 'trans_atten' not in blocks:
      raise ValueError(
        f'atten_mask must be None with layer_order={self.layer_order!r}, which '
        'has no attention'
      )
    outputs = inputs
    if self.has_fflayer_start:
      outputs = self.fflayer_start(outputs, paddings)
    for block in blocks:
      if block == 'lconv':
        outputs = self.lconv(outputs, paddings)
      else:
        outputs = self.trans_atten(outputs, paddings, atten_mask)
    if self.has_fflayer_end:
      outputs = self.fflayer_end(outputs, paddings)
    elif self.fflayer_weight_sharing:
      outputs = self.fflayer_start(outputs, paddings)
    return self.final_ln(outputs) if self.has_final_ln else outputs

  def _feed_forward(self, template: LayerTpl) -> LayerTpl:
    return template.clone().set(
      activation_tpl=self.ff_activation_tpl.clone(),
      hidden_dims=self.model_dims * self.ffn_dim_multiplier,
      residual_weight=self.ff_residual_weight,
      residual_dropout_prob=self._dropout_prob(self.ffn_residual_dropout),
      relu_dropout_prob=self._dropout_prob(self.ffn_relu_dropout),
    )

  def _create_trans_atten(self) -> None:
    block = self.trans_atten_tpl.clone().set(
      residual_dropout_prob=self._dropout_prob(self.atten_residual_dropout)
    )
    block.self_atten_tpl = block.self_atten_tpl.clone().set(
      input_dim=self.model_dims,
      hidden_dim=self.model_dims,
      num_heads=self.atten_num_heads,
      atten_dropout_prob=self._dropout_prob(self.atten_dropout),
    )
    block.norm_tpl = block.norm_tpl.clone().set(dim=self.model_dims)
    self.create_child('trans_atten', block)

  def _create_conv(self, template: LayerTpl) -> None:
    block = template.clone().set(
      input_dims=self.model_dims,
      kernel_size=self.kernel_size,
      dropout_prob=self._dropout_prob(self.conv_residual_dropout),
    )
    self.create_child('lconv', block)

  def _dropout_prob(self, block_prob: float | None) -> float:
    prob = block_prob if self.dropout_prob is None else self.dropout_prob
    return prob or 0.0

  def _check_settings(self) -> None:
    title = f'Conformer {self.name!r}'
    if self.layer_order not in _BLOCK_ORDERS:
      raise ValueError(
        f'{title} needs a layer_order of {", ".join(_BLOCK_ORDERS)}, got '
        f'{self.layer_order!r}'
      )
    if self.lconv_tpl is None and 'lconv' in _BLOCK_ORDERS[self.layer_order]:
      raise ValueError(
        f"{title} has no lconv_tpl; set it, or layer_order='mhsa' for no "
        'convolution'
      )
    if self.fflayer_weight_sharing and self.fflayer_start_tpl is None:
      raise ValueError(
        f'{title} shares the weights of fflayer_start: set fflayer_start_tpl, '
        'or fflayer_weight_sharing=False'
      )
    for name in (
      'atten_dropout',
      'atten_residual_dropout',
      'conv_residual_dropout',
      'ffn_residual_dropout',
      'ffn_relu_dropout',
    ):
      prob = getattr(self, name)
      if self.dropout_prob is not None and prob not in (
        None,
        self.dropout_prob,
      ):
        raise ValueError(
          f'{name} of {title} must be absent or dropout_prob='
          f'{self.dropout_prob}, got {prob}'
        )
