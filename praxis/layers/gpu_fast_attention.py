# SPDX-License-Identifier: Apache-2.0
"""Attention layers that always call cuDNN on GPUs, with the mask as a bias.

Where a kernel of attentions/kernel_choice.py supports the attention it runs
instead, without a mask in memory. Masks are applied: packed examples do not see
each other. Decoding steps, which have one query, use the computation of the
base classes.

Shapes: B batch, T queries, S keys and values, N heads, K heads of keys and
values, H head dimension.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Shaped

from praxis import py_utils
from praxis.alias_names import module_getattr
from praxis.layers import attentions, grouped_query_attention
from praxis.layers.attentions import (
  attention_core,
  dot_product,
  kernel_choice,
  kernel_inputs,
  masks,
  segments,
)

__getattr__ = module_getattr(__name__)

# Data types of cuDNN's kernel.
_CUDNN_DTYPES = (jnp.float16, jnp.bfloat16)


class _FusedAttention(kernel_choice.KernelAttention):
  """The fields of both layers."""

  # Whether later positions are masked in addition to the mask; the kernel then
  # skips them.
  is_causal: bool = False
  # 'cudnn' or 'xla', with the mask as a bias. When None a kernel without a
  # mask where it can run, else 'cudnn' on a GPU and 'xla' elsewhere.
  implementation: str | None = None

  without_kernel: ClassVar[str] = 'jax.nn.dot_product_attention with a bias'

  def _kernel_conflicts(self, mask: kernel_inputs.Mask) -> dict[str, bool]:
    is_causal = isinstance(mask, segments.SegmentMask) and mask.is_causal
    return {
      f'implementation={self.implementation!r}': bool(self.implementation),
      'is_causal=True': self.is_causal and not is_causal,
    }


class GpuCudnnFusedDotProductAttention(
  attentions.DotProductAttention, _FusedAttention
):
  """DotProductAttention without logits in memory; returns no probabilities."""

  has_kernel: ClassVar[bool] = True

  def _check_fields(self) -> None:
    super()._check_fields()
    _check_implementation(self.implementation)
    _check_no_cap(self.atten_logit_cap, 'DotProductAttention')
    if self.attention_extra_logit is not None:
      raise ValueError(
        'attention_extra_logit must be None for a fused kernel, got '
        f'{self.attention_extra_logit}; use DotProductAttention'
      )
    if self.use_attention_sinks:
      raise ValueError(
        'use_attention_sinks must be False for a fused kernel, got True; use '
        'DotProductAttention'
      )
    if getattr(self.ngrammer_tpl, 'ngram_using_attention_scores', False):
      raise ValueError(
        'ngram_using_attention_scores must be False for a fused kernel, got '
        'True; it has no scores, use DotProductAttention'
      )

  def _attend(
    self,
    inputs: attention_core.AttentionInputs,
    query_pos: dot_product.Positions,
  ) -> tuple[attention_core.QueryHeads, None]:
    del query_pos
    if not self.do_eval:
      _check_no_dropout(self.atten_dropout_prob, 'DotProductAttention')
    query, key, value, mask, bias = inputs
    scale = self._logit_transform().scale
    if bias is not None:
      # The kernel scales the products only.
      bias = (bias * scale).astype(query.dtype)
    encoded = _fused_attention(
      (self._scale_query(query), key, value),
      ~masks.is_masked(mask),
      bias,
      scale=scale,
      is_causal=self.is_causal,
      implementation=self.implementation,
    )
    if self.zero_fully_masked:
      fully_masked = jnp.all(masks.is_masked(mask), axis=-1)
      fully_masked = jnp.moveaxis(fully_masked, 1, 2)[..., jnp.newaxis]
      encoded = jnp.where(fully_masked, 0.0, encoded)
    return self._shard_heads(checkpoint_name(encoded, 'context')), None


class GpuCudnnFusedGroupedQueryAttention(
  grouped_query_attention.GroupedQueryAttention, _FusedAttention
):
  """GroupedQueryAttention without logits in memory."""

  has_kernel: ClassVar[bool] = True

  def _check_fields(self) -> None:
    super()._check_fields()
    _check_implementation(self.implementation)
    _check_no_cap(self.atten_logit_cap, 'GroupedQueryAttention')

  def _atten_context(
    self,
    query: Float[Array, 'B T N H'],
    key: Float[Array, 'B S K H'],
    value: Float[Array, 'B S K H'],
    mask: Shaped[Array, '#B #N #T S'],
  ) -> tuple[Float[Array, 'B T N H'], None]:
    if not self.do_eval:
      _check_no_dropout(self.atten_dropout_prob, 'GroupedQueryAttention')
    encoded = _fused_attention(
      (query, key, value),
      mask == 0,
      None,
      scale=self.dim_per_head**-0.5 / self.atten_temp,
      is_causal=self.is_causal,
      implementation=self.implementation,
    )
    return checkpoint_name(encoded, 'context'), None


def _fused_attention(
  heads: tuple[
    Float[Array, 'B T N H'], Float[Array, 'B S K H'], Float[Array, 'B S K H']
  ],
  visible: Bool[Array, '#B #N #T S'],
  bias: Float[Array, '#B N T S'] | None,
  *,
  scale: float,
  is_causal: bool,
  implementation: str | None,
) -> Float[Array, 'B T N H']:
  """Returns the attended values of (query, key, value)."""
  query, key, value = heads
  uses_cudnn = implementation == 'cudnn'
  if implementation is None:
    uses_cudnn = py_utils.target_platform() == 'gpu'
  if uses_cudnn:
    _check_cudnn(query)
  shape = (*visible.shape[:2], query.shape[1], key.shape[1])
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=bias,
    mask=jnp.broadcast_to(visible, shape),
    scale=scale,
    is_causal=is_causal,
    implementation='cudnn' if uses_cudnn else 'xla',
  )


def _check_cudnn(query: Float[Array, 'B T N H']) -> None:
  """Raises ValueError if the backend or data type has no cuDNN kernel."""
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
      'None selects by the backend'
    )


def _check_no_cap(logit_cap: float | None, alternative: str) -> None:
  if logit_cap and logit_cap > 0.0:
    raise ValueError(
      f'atten_logit_cap must be 0 for a fused kernel, got {logit_cap}; use '
      f'{alternative}'
    )


def _check_no_dropout(dropout_prob: float, alternative: str) -> None:
  if dropout_prob > 0.0:
    raise ValueError(
      'atten_dropout_prob must be 0 in training with a fused kernel, got '
      f'{dropout_prob}; use {alternative}'
    )
