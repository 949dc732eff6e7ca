# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences that are split over devices.

Shapes: B batch, T queries, S keys and values, N heads, K heads of keys and
values with N = K · G, H head.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

from praxis import base_layer, pytypes
from praxis.layers import base_ops
from praxis.layers.attentions import dot_product, masks
from praxis.layers.context_parallel import block_attention, sharded_attention
from praxis.layers.grouped_query_attention import layer as grouped

SplitDimsMapping = pytypes.SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_SourceHeads = Float[Array, 'B S K H']
_Positions = Int[Array, '#B T'] | None
_METHODS = ('ring', 'all_gather')


class ContextParallel(base_layer.BaseLayer):
  """What attention has for sequences that a mesh axis splits.

  On a mesh without that axis it is the attention it derives from, and so it is
  in decoding steps.
  """

  # The mesh axis that splits sequences.
  context_axis: str = 'seq'
  # 'ring': keys and values go from device to device, so that none has more
  # than its part; 'all_gather': every device gets all of them at once.
  context_method: str = 'ring'
  # Whether a query sees, of its segment, itself and what is before. That is
  # told by the segment's positions, and the mask, which has to say the same,
  # does not get onto the devices of a ring.
  is_causal: bool = False
  # Whether all devices of a causal ring have the same work.
  is_balanced: bool = False

  def _check_context(self, refused: dict[str, bool]) -> None:
    """Raises ValueError for settings that a ring does not have."""
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
    names = self.mesh_axis_names
    if names and self.context_axis not in names:
      raise ValueError(
        f'context_axis must be one of mesh_axis_names {list(names)}, got '
        f'{self.context_axis!r}; add it to the mesh'
      )
    found = [name for name, is_set in refused.items() if is_set]
    if self.context_method == 'ring' and found:
      raise ValueError(
        f'a ring of devices has no {", ".join(found)}; unset it or set '
        "context_method='all_gather'"
      )

  def _is_spread(self) -> bool:
    return sharded_attention.num_parts(self.context_axis) > 1

  def _gathered(
    self, source: _SourceHeads, split: SplitDimsMapping
  ) -> _SourceHeads:
    """Returns keys or values with the whole sequence on every device."""
    batch, _, heads, width = split or [None] * 4
    return base_layer.maybe_shard(
      source, [batch, None, heads, width], self.mesh_axis_names
    )

  def _around(
    self,
    heads: tuple[_Heads, _SourceHeads, _SourceHeads],
    mask: Shaped[Array, '#B #N #T S'],
    positions: _Positions,
    logits: block_attention.Logits,
    split: SplitDimsMapping,
  ) -> _Heads:
    """Returns what queries, scaled, see of the values that go around."""
    visible: dict[str, Any] = {'mask': mask}
    if self.is_causal:
      visible = {'first': _first_seen(heads, positions)}
    elif mask.shape[1] != 1:
      raise ValueError(
        f'atten_mask must be one for all heads in a ring, got {mask.shape}; '
        "set context_method='all_gather'"
      )
    how = sharded_attention.Spread(
      axis=self.context_axis,
      split=split,
      mesh_axis_names=self.mesh_axis_names,
      logits=logits,
      balanced=self.is_balanced,
    )
    return sharded_attention.attend(*heads, how, **visible)


class ContextParallelAttention(
  dot_product.DotProductAttention, ContextParallel
):
  """DotProductAttention over split sequences.

  References: Ring Attention, https://arxiv.org/abs/2310.01889
  """

  def _check_fields(self) -> None:
    super()._check_fields()
    products = self.qk_einsum_tpl, self.pv_einsum_tpl
    self._check_context(
      {
        'atten_dropout_prob': self.atten_dropout_prob > 0.0,
        'relative_bias_tpl': self.relative_bias_tpl is not None,
        'ngrammer_tpl': self.ngrammer_tpl is not None,
        'qk_einsum_tpl or pv_einsum_tpl': any(
          template.cls is not base_ops.EinsumOp for template in products
        ),
      }
    )

  def _attend_at(
    self,
    query: _Heads,
    key: _SourceHeads,
    value: _SourceHeads,
    mask: Float[Array, '#B #N #T S'],
    bias: Float[Array, '#B N T S'] | None,
    positions: _Positions,
  ) -> tuple[_Heads, Float[Array, 'B N ...'] | None]:
    """Returns the attended values; of a ring, no weights."""
    if not self._is_spread():
      return self._attend(query, key, value, mask, bias)
    split = self.activation_split_dims_mapping.blnh
    if self.context_method == 'all_gather':
      key, value = (self._gathered(x, split) for x in (key, value))
      return self._attend(query, key, value, mask, bias)
    scale = self._head_size() ** -0.5
    logits = block_attention.Logits(
      scale=scale if self.scale_logits_by_head_dims else 1.0,
      cap=self.atten_logit_cap,
      extra=self.attention_extra_logit,
    )
    heads = self._scale_query(query), key, value
    encoded = self._around(heads, mask, positions, logits, split)
    if self.zero_fully_masked and not self.is_causal:
      nothing = jnp.all(masks.is_hidden(mask), axis=-1)
      encoded = jnp.where(nothing[:, 0, :, None, None], 0.0, encoded)
    return self._shard_heads(checkpoint_name(encoded, 'context')), None


class ContextParallelGroupedQueryAttention(
  grouped.GroupedQueryAttention, ContextParallel
):
  """GroupedQueryAttention over split sequences."""

  def _check_fields(self) -> None:
    super()._check_fields()
    self._check_context({'atten_dropout_prob': self.atten_dropout_prob > 0.0})

  def _attend_at(
    self,
    query: _Heads,
    key: _SourceHeads,
    value: _SourceHeads,
    mask: Shaped[Array, '#B #N #T S'],
    positions: _Positions,
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """Returns the attended values; of a ring, no weights."""
    if not self._is_spread():
      return self._atten_context(query, key, value, mask)
    split = self.activation_split_dims_mapping
    if self.context_method == 'all_gather':
      key, value = (self._gathered(x, split.bskh) for x in (key, value))
      return self._atten_context(query, key, value, mask)
    heads = self._scale_query(query), key, value
    logits = block_attention.Logits(cap=self.atten_logit_cap)
    # Boolean or additive; True or not zero hides.
    additive = masks.hide(mask != 0, jnp.float32)
    encoded = self._around(heads, additive, positions, logits, split.btnh)
    return checkpoint_name(encoded, 'context'), None


def _first_seen(
  heads: tuple[_Heads, _SourceHeads, _SourceHeads], positions: _Positions
) -> Int[Array, '#B T']:
  """Returns the index of the first key of each query's segment."""
  length, num_keys = (x.shape[1] for x in heads[:2])
  if length != num_keys:
    raise ValueError(
      f'queries and keys must be as many with is_causal=True, got {length} and '
      f'{num_keys}; set it to False'
    )
  if positions is None:
    return jnp.zeros((1, length), jnp.int32)
  return jnp.maximum(jnp.arange(length) - positions, 0)
