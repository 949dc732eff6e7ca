# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention over sequences sharded by a mesh axis.

Shapes: B batch, T queries, S keys and values, N heads, K heads of keys and
values with N = K · G, H head dimension.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

from praxis import base_layer, pytypes
from praxis.layers import base_ops, grouped_query_attention
from praxis.layers.attentions import (
  attention_core,
  dot_product,
  kernel_choice,
  kernel_inputs,
  masks,
)
from praxis.layers.context_parallel import sharded_attention

SplitDimsMapping = pytypes.SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_KeyHeads = Float[Array, 'B S K H']
_Positions = Int[Array, '#B T'] | None
_METHODS = ('ring', 'all_gather')


class ContextParallel(kernel_choice.KernelAttention):
  """Fields and methods of attention layers with context parallelism.

  On a mesh without `context_axis`, and in decoding steps, a layer computes the
  same as its base class.
  """

  # The mesh axis that shards sequences.
  context_axis: str = 'seq'
  # 'ring': devices pass keys and values on, and each holds one shard at a time;
  # 'all_gather': every device gets all keys and values.
  context_method: str = 'ring'
  # Whether a query sees the keys of its segment up to its own position. A ring
  # then computes visibility from the segment positions and does not use the
  # mask, which must be equivalent.
  is_causal: bool = False
  # Whether a causal ring is load balanced (zigzag order).
  is_balanced: bool = False

  def _check_context(self, unsupported: dict[str, bool]) -> None:
    """Raises ValueError for options that a ring does not support."""
    if self.context_method not in _METHODS:
      raise ValueError(
        f'context_method must be one of {", ".join(_METHODS)}; got '
        f'{self.context_method!r}'
      )
    if self.is_balanced and not self.is_causal:
      raise ValueError(
        'is_causal must be True with is_balanced=True, got False; without an '
        'order in time devices have the same work anyway'
      )
    axis_names = self.mesh_axis_names
    if axis_names and self.context_axis not in axis_names:
      raise ValueError(
        f'context_axis must be one of mesh_axis_names {list(axis_names)}, got '
        f'{self.context_axis!r}; add it to the mesh'
      )
    names = [name for name, is_set in unsupported.items() if is_set]
    if self.context_method == 'ring' and names:
      raise ValueError(
        f'a ring of devices has no {", ".join(names)}; unset it or set '
        "context_method='all_gather'"
      )

  def _kernel_conflicts(self, mask: kernel_inputs.Mask) -> dict[str, bool]:
    del mask
    is_ring = self._is_context_parallel() and self.context_method == 'ring'
    return {"context_method='ring'": is_ring}

  def _is_context_parallel(self) -> bool:
    return sharded_attention.num_shards(self.context_axis) > 1

  def _all_gather(self, heads: _KeyHeads, split: SplitDimsMapping) -> _KeyHeads:
    """Returns keys or values with the whole sequence on every device."""
    batch_axis, _, head_axis, dim_axis = split or [None] * 4
    return base_layer.maybe_shard(
      heads, [batch_axis, None, head_axis, dim_axis], self.mesh_axis_names
    )

  def _ring_attend(
    self,
    heads: tuple[_Heads, _KeyHeads, _KeyHeads],
    mask: Shaped[Array, '#B #N #T S'],
    query_pos: _Positions,
    transform: attention_core.LogitTransform,
    split: SplitDimsMapping,
  ) -> _Heads:
    """Returns the attended values of (scaled query, key, value)."""
    visibility = mask
    if self.is_causal:
      visibility = _first_keys(heads, query_pos)
    elif mask.shape[1] != 1:
      raise ValueError(
        f'atten_mask must be one for all heads in a ring, got {mask.shape}; '
        "set context_method='all_gather'"
      )
    config = sharded_attention.RingConfig(
      axis=self.context_axis,
      query_split=split,
      mesh_axis_names=self.mesh_axis_names,
      transform=transform,
      balanced=self.is_balanced,
    )
    return sharded_attention.attend(*heads, visibility, config)


class ContextParallelAttention(
  dot_product.DotProductAttention, ContextParallel
):
  """DotProductAttention with context parallelism.

  References: Ring Attention, https://arxiv.org/abs/2310.01889
  """

  has_kernel: ClassVar[bool] = True

  def _check_fields(self) -> None:
    super()._check_fields()
    einsums = self.qk_einsum_tpl, self.pv_einsum_tpl
    self._check_context(
      {
        'atten_dropout_prob': self.atten_dropout_prob > 0.0,
        'relative_bias_tpl': self.relative_bias_tpl is not None,
        'ngrammer_tpl': self.ngrammer_tpl is not None,
        'use_attention_sinks': self.use_attention_sinks,
        'qk_einsum_tpl or pv_einsum_tpl': any(
          template.cls is not base_ops.EinsumOp for template in einsums
        ),
      }
    )

  def _attend(
    self,
    inputs: attention_core.AttentionInputs,
    query_pos: _Positions,
  ) -> tuple[_Heads, Float[Array, 'B N ...'] | None]:
    """Returns the attended values; a ring gives no probabilities."""
    if not self._is_context_parallel():
      return super()._attend(inputs, query_pos)
    query, key, value, mask, _ = inputs
    split = self.activation_split_dims_mapping.blnh
    if self.context_method == 'all_gather':
      key, value = (self._all_gather(x, split) for x in (key, value))
      gathered = inputs._replace(key=key, value=value)
      return super()._attend(gathered, query_pos)
    heads = self._scale_query(query), key, value
    encoded = self._ring_attend(
      heads, mask, query_pos, self._logit_transform(), split
    )
    if self.zero_fully_masked and not self.is_causal:
      fully_masked = jnp.all(masks.is_masked(mask), axis=-1)
      encoded = jnp.where(fully_masked[:, 0, :, None, None], 0.0, encoded)
    return self._shard_heads(checkpoint_name(encoded, 'context')), None


class ContextParallelGroupedQueryAttention(
  grouped_query_attention.GroupedQueryAttention, ContextParallel
):
  """GroupedQueryAttention with context parallelism."""

  has_kernel: ClassVar[bool] = True

  def _check_fields(self) -> None:
    super()._check_fields()
    self._check_context({'atten_dropout_prob': self.atten_dropout_prob > 0.0})

  def _attend(
    self,
    query: _Heads,
    key: _KeyHeads,
    value: _KeyHeads,
    mask: Shaped[Array, '#B #N #T S'],
    query_pos: _Positions,
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """Returns the attended values; a ring gives no probabilities."""
    if not self._is_context_parallel():
      return super()._attend(query, key, value, mask, query_pos)
    split = self.activation_split_dims_mapping
    if self.context_method == 'all_gather':
      key, value = (self._all_gather(x, split.bskh) for x in (key, value))
      return super()._attend(query, key, value, mask, query_pos)
    heads = self._scale_query(query), key, value
    transform = attention_core.LogitTransform(cap=self.atten_logit_cap)
    # Boolean or additive; masked where not zero.
    additive = masks.additive_mask(mask != 0, jnp.float32)
    encoded = self._ring_attend(
      heads, additive, query_pos, transform, split.btnh
    )
    return checkpoint_name(encoded, 'context'), None


def _first_keys(
  heads: tuple[_Heads, _KeyHeads, _KeyHeads], query_pos: _Positions
) -> Int[Array, '#B T']:
  """Returns the index of the first key of each query's segment."""
  length, num_keys = (x.shape[1] for x in heads[:2])
  if length != num_keys:
    raise ValueError(
      f'queries and keys must be as many with is_causal=True, got {length} and '
      f'{num_keys}; set it to False'
    )
  if query_pos is None:
    return jnp.zeros((1, length), jnp.int32)
  return jnp.maximum(jnp.arange(length) - query_pos, 0)
