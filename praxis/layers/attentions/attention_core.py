# SPDX-License-Identifier: Apache-2.0
"""Dot-product attention as functions of queries, keys, values and masks.

Shapes: B batch, T queries, S keys and values, N heads of queries, K heads of
keys and values, G = N / K heads of queries per head of keys, H head dimension.
Keys and values are [B, S, N, H]; [B, S, K, H] with fewer heads (GQA); or
[B, S, H] with one head (MQA).

References: Attention Is All You Need, arXiv:1706.03762, section 3.2; MQA,
arXiv:1911.02150; GQA, arXiv:2305.13245.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import masks, segments

Einsum = Callable[..., Array]
QueryHeads = Float[Array, 'B T N H']
KeyHeads = Float[Array, 'B S *K H']
# The first axis of a mask or bias has length 1 or B.
Mask = Float[Array, '#B #N #T S']
Bias = Float[Array, '#B N T S']
Index = Int[Array, ''] | int

# A logit that is only in the softmax's denominator; of each head if an array.
ExtraLogit = float | Float[Array, ' N'] | None
# The same as a number, or as an array that broadcasts to the logits.
ExtraLogitOfRows = float | Float[Array, '...'] | None

INPUT_NAMES = ('query', 'key', 'value')


class KeysAndValues(NamedTuple):
  """Keys and values of a layer, as its queries attend to them."""

  key: KeyHeads
  value: KeyHeads


# What attention returns with its output: probabilities, if anything.
Attended = Float[Array, 'B N ...'] | KeysAndValues | None


class AttentionInputs(NamedTuple):
  """Queries, keys and values, and the mask and bias of their logits."""

  # Not yet scaled.
  query: QueryHeads
  key: KeyHeads
  value: KeyHeads
  # Additive; see masks.py.
  mask: Mask
  # Added to the logits.
  bias: Bias | None = None

  def slice_keys(self, span: tuple[Index, int]) -> AttentionInputs:
    """Returns the inputs with a (start, size) span of the keys only."""
    query, key, value, mask, bias = self
    key, value = (masks.slice_span(x, span, 1) for x in (key, value))
    mask, bias = jax.tree.map(
      lambda x: masks.slice_span(x, span, -1), (mask, bias)
    )
    return AttentionInputs(query, key, value, mask, bias)

  def slice_queries(self, span: tuple[Index, int]) -> AttentionInputs:
    """Returns the inputs with a (start, size) span of the queries only."""
    query, key, value, mask, bias = self
    query = masks.slice_span(query, span, 1)
    mask, bias = jax.tree.map(
      lambda x: masks.slice_span(x, span, 2), (mask, bias)
    )
    return AttentionInputs(query, key, value, mask, bias)

  def repeat_keys(self) -> AttentionInputs:
    """Returns the inputs with keys and values repeated for every sample."""
    samples = self.query.shape[0] // self.key.shape[0]
    key, value = (
      jnp.repeat(x, samples, axis=0) for x in (self.key, self.value)
    )
    return self._replace(key=key, value=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitTransform:
  """The steps between the product of queries and keys and the softmax."""

  # Factor of the logits, applied first.
  scale: float = 1.0
  # Soft cap: logits become cap * tanh(logits / cap); 0 or None disables it.
  cap: float | None = 0.0
  # A logit in the softmax's denominator that attends to no value: of all heads,
  # or one for each.
  extra_logit: ExtraLogit = None


def dot_product_logits(
  einsum: Einsum, query: QueryHeads, key: KeyHeads
) -> Float[Array, 'B N T S']:
  """Returns the product of each query with the keys of its head."""
  if key.ndim == 3:
    return einsum('BTNH,BSH->BNTS', query, key)
  if key.shape[2] == query.shape[2]:
    return einsum('BTNH,BSNH->BNTS', query, key)
  logits = grouped_logits(einsum, query, key)
  return logits.reshape(logits.shape[0], -1, *logits.shape[3:])


def attend_to_values(
  einsum: Einsum, probs: Float[Array, 'B N T S'], value: KeyHeads
) -> QueryHeads:
  """Returns the values averaged with the probabilities of each head."""
  if value.ndim == 3:
    return einsum('BNTS,BSH->BTNH', probs, value)
  if value.shape[2] == probs.shape[1]:
    return einsum('BNTS,BSNH->BTNH', probs, value)
  batch, _, *lengths = probs.shape
  grouped = probs.reshape(batch, value.shape[2], -1, *lengths)
  return attend_to_grouped_values(einsum, grouped, value)


def grouped_logits(
  einsum: Einsum, query: QueryHeads, key: Float[Array, 'B S K H']
) -> Float[Array, 'B K G T S']:
  """Returns the product of each query with the keys of its group."""
  batch, length, _, head_dim = query.shape
  grouped = query.reshape(batch, length, key.shape[2], -1, head_dim)
  return einsum('BTKGH,BSKH->BKGTS', grouped, key)


def attend_to_grouped_values(
  einsum: Einsum,
  probs: Float[Array, 'B K G T S'],
  value: Float[Array, 'B S K H'],
) -> QueryHeads:
  """Returns the values of each group, averaged with the probabilities."""
  encoded = einsum('BKGTS,BSKH->BTKGH', probs, value)
  batch, length, *_, head_dim = encoded.shape
  return encoded.reshape(batch, length, -1, head_dim)


def attention_probs(
  logits: Float[Array, 'B N T S'],
  mask: Mask,
  bias: Bias | None,
  transform: LogitTransform,
  *,
  zero_fully_masked: bool = False,
) -> Float[Array, 'B N T S']:
  """Returns the float32 attention probabilities.

  Args:
    logits: products of queries and keys.
    mask: additive; see masks.py.
    bias: added to the logits before they are scaled.
    transform: scale, cap and extra logit.
    zero_fully_masked: whether queries without a visible key get probability 0
      for all keys instead of a uniform distribution.
  """
  logits = checkpoint_name(scale_logits(logits, bias, transform), 'logits')
  logits = cap_logits(logits, transform.cap)
  return masked_softmax(
    logits,
    mask,
    extra_logit=extra_logit_of_rows(transform.extra_logit),
    zero_fully_masked=zero_fully_masked,
  )


def extra_logit_of_rows(extra_logit: ExtraLogit) -> ExtraLogitOfRows:
  """Returns an extra logit that broadcasts to logits [B, N, T, S]."""
  if isinstance(extra_logit, jax.Array):
    return extra_logit[:, jnp.newaxis, jnp.newaxis]
  return extra_logit


def scale_logits(
  logits: Float[Array, 'B N T S'], bias: Bias | None, transform: LogitTransform
) -> Float[Array, 'B N T S']:
  """Returns the logits with their bias, scaled, before the cap."""
  if bias is not None:
    logits += bias.astype(logits.dtype)
  return logits * transform.scale if transform.scale != 1.0 else logits


def summarize_logits(
  layer: base_layer.BaseLayer,
  logits: Float[Array, 'B N T S'],
  mask: Mask,
  bias: Bias | None,
  transform: LogitTransform,
) -> None:
  """Writes the largest visible logit and the RMS before the cap.

  Args:
    layer: writes the summaries, at verbosity 4.
    logits: products of queries and keys.
    mask: additive; see masks.py.
    bias: added to the logits before they are scaled.
    transform: scale of the logits.
  """
  scaled = functools.cache(lambda: scale_logits(logits, bias, transform))
  layer.add_summary(
    'max_logit_precap',
    lambda: jnp.max(masks.apply_mask(scaled(), mask)),
    verbosity=4,
  )
  layer.add_summary(
    'rms_logits_precap',
    lambda: jnp.sqrt(jnp.mean(scaled() ** 2).astype(jnp.float32)),
    verbosity=4,
  )


def cap_logits(
  logits: Float[Array, '*B'], cap: float | None
) -> Float[Array, '*B']:
  """Returns the logits within ± cap by a tanh; unchanged with cap 0 or None."""
  return cap * jnp.tanh(logits / cap) if cap and cap > 0.0 else logits


def masked_softmax(
  logits: Float[Array, '*B S'],
  mask: Float[Array, '*#B #S'],
  *,
  extra_logit: ExtraLogitOfRows = None,
  zero_fully_masked: bool = False,
) -> Float[Array, '*B S']:
  """Returns float32 probabilities over the visible positions.

  Args:
    logits: of any float type.
    mask: additive; see masks.py.
    extra_logit: a logit that is only in the denominator.
    zero_fully_masked: whether fully masked rows become 0 instead of uniform.
  """
  masked = masks.apply_mask(logits.astype(jnp.float32), mask)
  probs = softmax(masked, extra_logit)
  if zero_fully_masked:
    fully_masked = jnp.all(masks.is_masked(mask), axis=-1, keepdims=True)
    probs = jnp.where(fully_masked, 0.0, probs)
  return probs


def softmax(
  logits: Float[Array, '*B S'], extra_logit: ExtraLogitOfRows = None
) -> Float[Array, '*B S']:
  """Returns the softmax over the last axis.

  The derivative is a function of the result alone. Differentiating the
  exponential and the division instead would keep the exponentials as well and
  take more passes over them.

  Args:
    logits: of any float type.
    extra_logit: a logit that is only in the denominator.
  """
  return _softmax_and_extra(logits, extra_logit)[0]


@jax.custom_jvp
def _softmax_and_extra(
  logits: Float[Array, '*B S'], extra_logit: ExtraLogitOfRows
) -> tuple[Float[Array, '*B S'], Float[Array, '*B 1'] | None]:
  """Returns the softmax and the probability of the extra logit."""
  max_logit = jnp.max(logits, axis=-1, keepdims=True)
  if extra_logit is not None:
    max_logit = jnp.maximum(max_logit, extra_logit)
  exps = jnp.exp(logits - max_logit)
  denominator = jnp.sum(exps, axis=-1, keepdims=True)
  if extra_logit is None:
    return exps / denominator, None
  extra = jnp.exp(extra_logit - max_logit)
  denominator += extra
  return exps / denominator, extra / denominator


def _softmax_jvp(
  primals: tuple[Array, ExtraLogitOfRows], tangents: tuple[Any, Any]
) -> tuple[tuple[Array, Array | None], tuple[Array, Array | None]]:
  """Returns probabilities p and dp = p (dx - Σ p dx), over all logits x."""
  probs, extra = _softmax_and_extra(*primals)
  dlogits, dextra = tangents
  if isinstance(dlogits, jax.custom_derivatives.SymbolicZero):
    dlogits = jnp.zeros_like(probs)
  mean = jnp.sum(probs * dlogits, axis=-1, keepdims=True)
  if extra is None:
    return (probs, None), (probs * (dlogits - mean), None)
  if isinstance(dextra, jax.custom_derivatives.SymbolicZero):
    dextra = 0.0
  else:
    mean += extra * dextra
  return (probs, extra), (probs * (dlogits - mean), extra * (dextra - mean))


_softmax_and_extra.defjvp(_softmax_jvp, symbolic_zeros=True)


def log_softmax(
  logits: Float[Array, '*B S'], extra_logit: ExtraLogitOfRows = None
) -> Float[Array, '*B S']:
  """Returns the logarithm of `softmax`.

  Args:
    logits: of any float type.
    extra_logit: a logit that is only in the denominator.
  """
  total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  if extra_logit is not None:
    total = jnp.logaddexp(total, extra_logit)
  return logits - total


# Several samples may continue one example of a decode cache. They are folded
# into the query axis, so that the keys of the example are read once. C is the
# batch of the cache, B = C · samples, L steps per sample, R = samples · L.


def attend_with_folded_samples(
  attend: Callable[[AttentionInputs], tuple[Array, Array]],
  inputs: AttentionInputs,
) -> tuple[Float[Array, 'B L N H'], Float[Array, 'B N L S']]:
  """Returns the attended values and probabilities of samples.

  Args:
    attend: attends from R queries of each cached example.
    inputs: queries of B samples; keys and values of C examples.
  """
  query, key, value, mask, bias = inputs
  batch, steps = query.shape[:2]

  def fold(x: Array) -> Array:
    x = jnp.broadcast_to(x, (batch, x.shape[1], steps, x.shape[3]))
    return fold_samples(x, key.shape[0])

  mask, bias = jax.tree.map(fold, (mask, bias))
  folded_query = fold_queries(query, key.shape[0])
  encoded, probs = attend(AttentionInputs(folded_query, key, value, mask, bias))
  encoded = encoded.reshape(*query.shape[:-1], -1)
  return encoded, unfold_samples(probs, batch)


def fold_queries(
  query: Float[Array, 'B L N H'], cache_batch: int
) -> Float[Array, 'C R N H']:
  """Moves the samples of each cached example to the query axis."""
  return query.reshape(cache_batch, -1, *query.shape[2:])


def fold_samples(
  x: Float[Array, 'B N L S'], cache_batch: int
) -> Float[Array, 'C N R S']:
  """Moves samples of masks, biases or probabilities to the query axis."""
  batch, heads, steps, keys = x.shape
  x = x.reshape(cache_batch, batch // cache_batch, heads, steps, keys)
  return jnp.moveaxis(x, 2, 1).reshape(cache_batch, heads, -1, keys)


def unfold_samples(
  x: Float[Array, 'C N R S'], batch: int
) -> Float[Array, 'B N L S']:
  """Inverts `fold_samples` for logits or probabilities."""
  cache_batch, heads, _, keys = x.shape
  x = x.reshape(cache_batch, heads, batch // cache_batch, -1, keys)
  return jnp.moveaxis(x, 2, 1).reshape(batch, heads, -1, keys)


def check_dims(
  input_dim: int | Mapping[str, int],
  num_heads: int,
  dim_per_head: int | None,
  hidden_dim: int,
) -> None:
  """Checks that the dimensions of an attention layer fit together.

  Args:
    input_dim: of all inputs, or of each by name.
    num_heads: number of heads.
    dim_per_head: head dimension; hidden_dim / num_heads when None.
    hidden_dim: dimension of all heads together.

  Raises:
    ValueError: a dimension is missing or does not divide.
  """
  if isinstance(input_dim, Mapping):
    input_dim = dims = dict(input_dim)
  else:
    dims = dict.fromkeys(INPUT_NAMES, input_dim)
  if set(dims) != set(INPUT_NAMES) or min(dims.values()) <= 0:
    raise ValueError(
      'input_dim must be positive, or a positive number for each of '
      f'{list(INPUT_NAMES)}, got {input_dim}; set the size of the inputs'
    )
  if (
    num_heads <= 0
    or (hidden_dim if dim_per_head is None else dim_per_head) <= 0
  ):
    raise ValueError(
      'num_heads and the size of a head must be positive, got num_heads='
      f'{num_heads}, dim_per_head={dim_per_head}, hidden_dim={hidden_dim}; set '
      'hidden_dim or dim_per_head'
    )
  if dim_per_head is None and hidden_dim % num_heads:
    raise ValueError(
      f'hidden_dim must be a multiple of num_heads={num_heads}, got '
      f'{hidden_dim}; set dim_per_head for heads of another size'
    )


def check_inputs(inputs: Sequence[Array], dims: Sequence[int]) -> None:
  """Checks the shapes of the inputs of queries, keys and values.

  Args:
    inputs: of queries, keys and values.
    dims: the size of the last dimension of each.

  Raises:
    ValueError: an input is not [batch, time, dim], or keys and values differ in
      batch or time.
  """
  for name, x, dim in zip(INPUT_NAMES, inputs, dims, strict=True):
    if x.ndim != 3 or x.shape[-1] != dim:
      raise ValueError(
        f'{name}_vec must have shape [batch, time, {dim}], got '
        f'{list(x.shape)}; set input_dim to the size of the inputs'
      )
  _, key, value = inputs
  if key.shape[:2] != value.shape[:2]:
    raise ValueError(
      'value_vec must have the batch and time of key_vec '
      f'{list(key.shape[:2])}, got {list(value.shape[:2])}; pass one value for '
      'each key'
    )


def check_mask(
  mask: Array | segments.SegmentMask,
  batch: int,
  num_heads: int,
  num_queries: int,
  num_keys: int,
) -> None:
  """Checks that a mask broadcasts to the logits.

  Args:
    mask: additive or boolean, or segments.
    batch: size of the batch.
    num_heads: number of heads of queries.
    num_queries: number of queries.
    num_keys: number of keys.

  Raises:
    ValueError: the mask is not [batch or 1, heads or 1, queries or 1, keys].
  """
  fits = (
    mask.ndim == 4
    and mask.shape[0] in (1, batch)
    and mask.shape[1] in (1, num_heads)
    and mask.shape[2] in (1, num_queries)
    and mask.shape[3] == num_keys
  )
  if not fits:
    raise ValueError(
      f'atten_mask must have shape [{batch} or 1, 1, {num_queries} or 1, '
      f'{num_keys}], got {list(mask.shape)}; build it with segment_mask, '
      'causal_mask or convert_paddings_to_mask'
    )
