# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention, and its boolean masks.

Shapes: B batch, T queries, S keys and values, L decoding steps, D model, N
heads of queries, K heads of keys and values with N = K · G, H head dimension.

A mask is boolean, True where a position is masked. Additive masks work too, as
they are zero where a position is visible. The axes are batch, head, query
position, key position; an axis of length 1 is broadcast.

References: GQA, arXiv:2305.13245.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from praxis import base_layer, pax_fiddle, pytypes
from praxis.alias_names import module_getattr
from praxis.layers import multi_query_attention
from praxis.layers.attentions import (
  attention_core,
  kernel_choice,
  kernel_inputs,
  kv_cache,
  masks,
  projections,
  segments,
)
from praxis.layers.embedding_softmax import rotary

__getattr__ = module_getattr(__name__)

SplitDimsMapping = pytypes.SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_KeyHeads = Float[Array, 'B S K H']
_Mask = Shaped[Array, '#B #N #T S']


class GroupedQueryAttention(
  kv_cache.CachedAttention, kernel_choice.KernelAttention
):
  """Dot-product attention with fewer heads of keys and values than of queries.

  The probabilities are [B, K, G, T, S]; None from a kernel.
  """

  # Dimension of the inputs and of the output.
  input_dim: int = 0
  # Ignored; the heads of the queries have N · H dimensions together.
  hidden_dim: int = 0
  num_heads: int = 1
  # Number of heads of keys and values. A single head has no head axis in its
  # weights.
  num_kv_heads: int = 1
  # Dimension of a head.
  dim_per_head: int = 0
  # Dropout of the attention probabilities.
  atten_dropout_prob: float = 0.0
  # Temperature: divides the logits in addition to √H.
  atten_temp: float = 1.0
  use_bias: bool = True
  # Soft cap of the logits, cap * tanh(logits / cap); 0 disables it.
  atten_logit_cap: float = 0.0
  # The timescales of rotary position embedding; None disables it.
  rope_min_max_timescales: tuple[int, int] | None = None

  has_kernel: ClassVar[bool] = True

  class WeightSharding(base_layer.WeightSharding):
    # Shardings of query and output weights [D, N, H], and of key and value
    # weights [D, K, H]; dkh None means dnh.
    dnh: SplitDimsMapping = None
    dkh: SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Shardings of inputs and output, of queries, and of keys and values.
    btd: SplitDimsMapping = None
    btnh: SplitDimsMapping = None
    bskh: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_fields()
    split = self.weight_split_dims_mapping
    self.create_child('query', self._projection(self.num_heads, split.dnh))
    for name in ('key', 'value'):
      source_split = split.dkh or split.dnh
      self.create_child(name, self._projection(self.num_kv_heads, source_split))
    post = self._multi_head_projection(self.num_heads, split.dnh)
    self.create_child('post', post.set(is_output_projection=True))

  def __call__(
    self,
    query_vec: Float[Array, 'B T D'],
    key_vec: Float[Array, 'B S D'],
    value_vec: Float[Array, 'B S D'],
    atten_mask: _Mask | segments.SegmentMask,
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B S'] | None = None,
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B K G T S'] | None]:
    """Returns the attended values and the probabilities, after dropout.

    Args:
      query_vec: inputs of the queries.
      key_vec: inputs of the keys.
      value_vec: inputs of the values.
      atten_mask: boolean or additive, masked where not zero; or segments, which
        kernels read.
      query_segment_pos: position of each query in its segment; its index when
        None.
      key_segment_pos: likewise of each key.
    """
    inputs = query_vec, key_vec, value_vec
    attention_core.check_inputs(inputs, [self.input_dim] * 3)
    batch, length = query_vec.shape[:2]
    attention_core.check_mask(
      atten_mask, batch, self.num_heads, length, key_vec.shape[1]
    )
    query, key, value = self._project(*inputs)
    query = self._maybe_rope(query, query_segment_pos)
    key = self._maybe_rope(key, key_segment_pos)
    writer = self._prefill_writer()
    key = writer.write('key_state', key)
    value = writer.write('value_state', value)
    heads = kernel_inputs.Heads(query, key, value)
    encoded, probs = self._attend_by_kernel(heads, atten_mask), None
    if encoded is None:
      mask = segments.additive(atten_mask)
      encoded, probs = self._attend(*heads, mask, query_segment_pos)
    return self._project_output(encoded), probs

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Shaped[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None,
    is_cross_attention: bool = False,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values for one or several decoding steps.

    Args:
      query_vec: input of one step, or of several with a time axis.
      atten_mask: boolean or additive, [B or 1, 1, S], or [B or 1, 1, L, S] for
        L steps.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
      is_cross_attention: whether keys come from another sequence, cached by the
        forward pass.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    batch, steps = query_vec.shape[:2]
    atten_mask = masks.expand_step_mask(atten_mask, batch)
    pos = masks.step_positions(segment_pos, time_step, steps)
    query, key, value = self._project(query_vec, query_vec, query_vec)
    query = self._maybe_rope(query, pos)
    if is_cross_attention:
      names = ('key_state', 'value_state')
      key, value = (self.get_decode_state(name) for name in names)
    else:
      key = self._maybe_rope(key, pos)
      key = self.extend_decode_state('key_state', key, time_step)
      value = self.extend_decode_state('value_state', value, time_step)
    # The samples of an example share its keys.
    key, value = (
      jnp.repeat(x, batch // x.shape[0], axis=0) for x in (key, value)
    )
    attention_core.check_mask(
      atten_mask, batch, self.num_heads, steps, key.shape[1]
    )
    encoded, _ = self._attend_dense(query, key, value, atten_mask)
    outputs = self._project_output(encoded)
    return outputs[:, 0] if is_single else outputs

  def _kernel_spec(
    self, mask: segments.SegmentMask
  ) -> kernel_inputs.KernelSpec:
    split = self.activation_split_dims_mapping.btnh
    return kernel_inputs.KernelSpec(
      mask, logit_cap=self.atten_logit_cap, split=split
    )

  def _kernel_queries(self, query: _Heads) -> _Heads:
    return self._scale_query(query)

  def _unsupported_by_kernels(self) -> dict[str, bool]:
    has_dropout = self.atten_dropout_prob > 0.0 and not self.do_eval
    return {'atten_dropout_prob': has_dropout}

  def _attend(
    self,
    query: _Heads,
    key: _KeyHeads,
    value: _KeyHeads,
    mask: _Mask,
    query_pos: Int[Array, '#B T'] | None,
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """Returns the attended values of whole sequences, and the probabilities."""
    del query_pos
    return self._atten_context(query, key, value, mask)

  def _atten_context(
    self, query: _Heads, key: _KeyHeads, value: _KeyHeads, mask: _Mask
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """Attends with whole sequences; fused kernels override this."""
    return self._attend_dense(query, key, value, mask)

  def _scale_query(self, query: _Heads) -> _Heads:
    return query * (self.dim_per_head**-0.5 / self.atten_temp)

  def _attend_dense(
    self, query: _Heads, key: _KeyHeads, value: _KeyHeads, mask: _Mask
  ) -> tuple[_Heads, Float[Array, 'B K G T S']]:
    """Attends with the logits of all queries and keys in memory."""
    query = self._scale_query(query)
    logits = attention_core.grouped_logits(jnp.einsum, query, key)
    logits = checkpoint_name(logits, 'logits')
    logits = attention_core.cap_logits(logits, self.atten_logit_cap)
    if mask.shape[1] == 1:
      mask = mask[:, :, jnp.newaxis]
    else:
      mask = mask.reshape(mask.shape[0], key.shape[2], -1, *mask.shape[2:])
    masked = apply_mask(logits.astype(jnp.float32), mask)
    probs = attention_core.softmax(masked).astype(key.dtype)
    if self.atten_dropout_prob > 0.0 and not self.do_eval:
      probs = apply_dropout(
        probs, self.next_prng_key(), self.atten_dropout_prob
      )
    encoded = attention_core.attend_to_grouped_values(jnp.einsum, probs, value)
    return checkpoint_name(encoded, 'context'), probs

  def _project(
    self, query_vec: Array, key_vec: Array, value_vec: Array
  ) -> tuple[_Heads, _KeyHeads, _KeyHeads]:
    split = self.activation_split_dims_mapping
    heads = [
      self._project_input(
        name, x, split.btnh if name == 'query' else split.bskh
      )
      for name, x in zip(
        attention_core.INPUT_NAMES, (query_vec, key_vec, value_vec), strict=True
      )
    ]
    return heads[0], heads[1], heads[2]

  def _project_input(
    self, name: str, inputs: Array, split: SplitDimsMapping
  ) -> Float[Array, 'B T K H']:
    axis_names = self.mesh_axis_names
    inputs_split = self.activation_split_dims_mapping.btd
    inputs = base_layer.maybe_shard(inputs, inputs_split, axis_names)
    heads = getattr(self, name)(inputs)
    if heads.ndim == 3:
      heads = heads[:, :, jnp.newaxis]
      # A single head is not sharded.
      split = split and [*split[:2], None, split[3]]
    heads = base_layer.maybe_shard(heads, split, axis_names)
    return checkpoint_name(heads, f'{name}_proj')

  def _maybe_rope(
    self, heads: Float[Array, 'B T K H'], pos: Int[Array, '#B T'] | None
  ) -> Float[Array, 'B T K H']:
    if self.rope_min_max_timescales is None:
      return heads
    return apply_rope(heads, *self.rope_min_max_timescales, pos)

  def _project_output(self, encoded: _Heads) -> Float[Array, 'B T D']:
    split = self.activation_split_dims_mapping
    encoded = base_layer.maybe_shard(encoded, split.btnh, self.mesh_axis_names)
    outputs = base_layer.maybe_shard(
      self.post(encoded), split.btd, self.mesh_axis_names
    )
    return checkpoint_name(outputs, 'out_proj')

  def _projection(
    self, num_heads: int, split: SplitDimsMapping
  ) -> pax_fiddle.Config[base_layer.BaseLayer]:
    if num_heads > 1:
      return self._multi_head_projection(num_heads, split)
    proj = pax_fiddle.Config(
      multi_query_attention.OneHeadedAttentionProjection,
      input_dim=self.input_dim,
      output_dim=self.dim_per_head,
      use_bias=self.use_bias,
    )
    proj.weight_split_dims_mapping.wt = split and [split[0], split[2]]
    return proj

  def _multi_head_projection(
    self, num_heads: int, split: SplitDimsMapping
  ) -> pax_fiddle.Config[base_layer.BaseLayer]:
    proj = pax_fiddle.Config(
      projections.AttentionProjection,
      input_dim=self.input_dim,
      num_heads=num_heads,
      dim_per_head=self.dim_per_head,
      use_bias=self.use_bias,
      explicit_fan_in_fan_out_axes=True,
    )
    proj.weight_split_dims_mapping.wt = split
    return proj

  def _check_fields(self) -> None:
    self._check_implementation()
    for name in ('input_dim', 'dim_per_head', 'num_heads', 'num_kv_heads'):
      if getattr(self, name) <= 0:
        raise ValueError(
          f'{name} must be positive, got {getattr(self, name)}; set it'
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_kv_heads must divide num_heads={self.num_heads}, got '
        f'{self.num_kv_heads}; each group of heads shares one of keys'
      )
    if self.rope_min_max_timescales and self.dim_per_head % 2:
      raise ValueError(
        'dim_per_head must be even with rope_min_max_timescales, got '
        f'{self.dim_per_head}; channels rotate in pairs'
      )


def causal_mask(seqlen: int) -> Bool[Array, '1 1 T T']:
  """Returns the mask that hides later positions."""
  index = jnp.arange(seqlen)
  return (index[:, jnp.newaxis] < index)[jnp.newaxis, jnp.newaxis]


def segment_mask(
  segment_ids: Num[Array, 'B T'],
  src_segment_ids: Num[Array, 'B S'] | None = None,
) -> Bool[Array, 'B 1 T S']:
  """Returns the mask that hides other segments."""
  if src_segment_ids is None:
    src_segment_ids = segment_ids
  differs = segment_ids[:, :, jnp.newaxis] != src_segment_ids[:, jnp.newaxis]
  return differs[:, jnp.newaxis]


def attention_mask(segment_ids: Num[Array, 'B T']) -> Bool[Array, 'B 1 T T']:
  """Returns the mask that hides later positions and other segments."""
  return causal_mask(segment_ids.shape[1]) | segment_mask(segment_ids)


def padding_mask(paddings: Num[Array, 'B T']) -> Num[Array, 'B 1 1 T']:
  """Returns the mask that hides padded keys (padding 1)."""
  return paddings[:, jnp.newaxis, jnp.newaxis]


def apply_mask(
  logits: Float[Array, '*B S'], atten_mask: Shaped[Array, '*#B #S']
) -> Float[Array, '*B S']:
  """Returns the logits with a large negative number where the mask is not 0."""
  return jnp.where(atten_mask != 0, masks.large_negative(logits.dtype), logits)


def apply_rope(
  inputs: Float[Array, 'B S *K H'],
  min_timescale: int,
  max_timescale: int,
  position: Int[Array, '#B S'] | None = None,
) -> Float[Array, 'B S *K H']:
  """Returns the inputs rotated by their positions.

  Args:
    inputs: heads of queries or keys.
    min_timescale: of the fastest rotation.
    max_timescale: of the slowest rotation.
    position: of each input; its index when None.

  References: RoFormer, https://arxiv.org/abs/2104.09864
  """
  if position is None:
    position = jnp.arange(inputs.shape[1])[jnp.newaxis]
  timescale = rotary.timescales(inputs.shape[-1], min_timescale, max_timescale)
  return rotary.rotate(inputs, position, timescale).astype(inputs.dtype)


def apply_dropout(
  x: Float[Array, '...'],
  prng_key: pytypes.PRNGKey,
  dropout_prob: float,
  broadcast_dims: Sequence[int] = (),
) -> Float[Array, '...']:
  """Returns `x` with elements dropped and the others scaled by 1 / (1 - p).

  Args:
    x: of any shape.
    prng_key: random key of the dropout mask.
    dropout_prob: the probability p that an element is dropped.
    broadcast_dims: dimensions along which elements are dropped together.
  """
  if dropout_prob == 0.0:
    return x
  shape = [1 if i in broadcast_dims else n for i, n in enumerate(x.shape)]
  keep = jax.random.bernoulli(prng_key, 1.0 - dropout_prob, shape)
  return jnp.where(keep, x / (1.0 - dropout_prob), jnp.zeros((), x.dtype))
