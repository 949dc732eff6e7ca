# SPDX-License-Identifier: Apache-2.0
"""Attention of whole sequences by one fused kernel, cuDNN's on GPUs.

The mask is honoured: packed examples do not see each other. Steps of decoding,
which have one query, are computed as in the base classes.

Shapes: B batch, T queries, S keys and values, N heads, K heads of keys and
values, H head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Shaped

from praxis import base_layer, py_utils
from praxis.layers import attentions, grouped_query_attention
from praxis.layers.attentions import masks, products

# What cuDNN's kernel computes with.
_CUDNN_DTYPES = (jnp.float16, jnp.bfloat16)


class GpuCudnnFusedDotProductAttention(attentions.DotProductAttention):
  """DotProductAttention whose logits are never in memory; no probabilities."""

  # Whether later positions are hidden even where the mask shows them. The
  # kernel then skips them.
  is_causal: bool = False
  # 'cudnn' or 'xla'; when absent 'cudnn' where there is a GPU, else 'xla'.
  implementation: str | None = None

  def _check_fields(self) -> None:
    super()._check_fields()
    _check_implementation(self.implementation)
    _check_no_cap(self)
    if self.attention_extra_logit is not None:
      raise ValueError(
        'attention_extra_logit must be None for a fused kernel, got '
        f'{self.attention_extra_logit}; use DotProductAttention'
      )
    if getattr(self.ngrammer_tpl, 'ngram_using_attention_scores', False):
      raise ValueError(
        'ngram_using_attention_scores must be False for a fused kernel, got '
        'True; it has no scores, use DotProductAttention'
      )

  def _attend(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    value: products.SourceHeads,
    mask: products.Mask,
    bias: products.Bias | None,
  ) -> tuple[products.Heads, None]:
    _check_no_dropout(self)
    scale = 1.0
    if self.scale_logits_by_head_dims:
      scale = self._head_size() ** -0.5
    if bias is not None:
      # The kernel scales products only.
      bias = (bias * scale).astype(query.dtype)
    encoded = _fused(
      self,
      (self._scale_query(query), key, value),
      ~masks.is_hidden(mask),
      bias,
      scale=scale,
    )
    if self.zero_fully_masked:
      nothing = jnp.all(masks.is_hidden(mask), axis=-1)
      encoded = jnp.where(
        jnp.moveaxis(nothing, 1, 2)[..., jnp.newaxis], 0.0, encoded
      )
    return self._shard_heads(checkpoint_name(encoded, 'context')), None


class GpuCudnnFusedGroupedQueryAttention(
  grouped_query_attention.GroupedQueryAttention
):
  """GroupedQueryAttention whose logits are never in memory."""

  # As in GpuCudnnFusedDotProductAttention.
  is_causal: bool = False
  implementation: str | None = None

  def _check_fields(self) -> None:
    super()._check_fields()
    _check_implementation(self.implementation)
    _check_no_cap(self)

  def _atten_context(
    self,
    query: Float[Array, 'B T N H'],
    key: Float[Array, 'B S K H'],
    value: Float[Array, 'B S K H'],
    mask: Shaped[Array, '#B #N #T S'],
  ) -> tuple[Float[Array, 'B T N H'], None]:
    _check_no_dropout(self)
    scale = self.dim_per_head**-0.5 / self.atten_temp
    encoded = _fused(self, (query, key, value), mask == 0, None, scale=scale)
    return checkpoint_name(encoded, 'context'), None


def _fused(
  layer: base_layer.BaseLayer,
  heads: tuple[Array, Array, Array],
  visible: Bool[Array, '#B #N #T S'],
  bias: Float[Array, '#B N T S'] | None,
  *,
  scale: float,
) -> Float[Array, 'B T N H']:
  """Returns the mean of the values each query sees."""
  query, key, value = heads
  implementation = layer.implementation
  if implementation is None:
    has_gpu = py_utils.target_platform() == 'gpu'
    implementation = 'cudnn' if has_gpu else 'xla'
  if implementation == 'cudnn':
    _check_cudnn(query)
  shape = (*visible.shape[:2], query.shape[1], key.shape[1])
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=bias,
    mask=jnp.broadcast_to(visible, shape),
    scale=scale,
    is_causal=layer.is_causal,
    implementation=implementation,
  )


def _check_cudnn(query: Float[Array, 'B T N H']) -> None:
  """Raises ValueError if this machine or data type has no cuDNN kernel."""
  if py_utils.target_platform() != 'gpu':
    raise ValueError(
      "implementation='cudnn' needs an NVIDIA GPU, got the backend "
      f"{py_utils.target_platform()!r}; leave it None or set it to 'xla'"
    )
  if query.dtype not in _CUDNN_DTYPES:
    raise ValueError(
      f'cuDNN attends in bfloat16 or float16, got {query.dtype}; set '
      "fprop_dtype=jnp.bfloat16, or implementation='xla'"
    )


def _check_implementation(implementation: str | None) -> None:
  if implementation not in (None, 'cudnn', 'xla'):
    raise ValueError(
      f"implementation must be 'cudnn', 'xla' or None, got {implementation!r}; "
      'None takes what the machine has'
    )


def _check_no_cap(layer: base_layer.BaseLayer) -> None:
  if layer.atten_logit_cap > 0.0:
    raise ValueError(
      'atten_logit_cap must be 0 for a fused kernel, got '
      f'{layer.atten_logit_cap}; use {type(layer).__mro__[1].__name__}'
    )


def _check_no_dropout(layer: base_layer.BaseLayer) -> None:
  if layer.atten_dropout_prob > 0.0 and not layer.do_eval:
    raise ValueError(
      'atten_dropout_prob must be 0 in training with a fused kernel, got '
      f'{layer.atten_dropout_prob}; use {type(layer).__mro__[1].__name__}'
    )
