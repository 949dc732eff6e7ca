# SPDX-License-Identifier: Apache-2.0
"""Draws the next token from logits."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_hyperparams, pax_fiddle
from praxis.decoding import filters
from praxis.nested_map import NestedMap

# A key of this number, everywhere, stands for none in batches of serving.
DUMMY_PRNG_KEY = 15753

Temperature = float | Float[Array, '...'] | None


class BaseLogitsSampler(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Draws from logits that are filtered already."""

  @abc.abstractmethod
  def __call__(
    self,
    prng_key: Array,
    logits: Float[Array, 'B K'],
    ids: Int[Array, 'B K'] | None,
    temperature: Temperature,
    decode_loop_state: NestedMap | None,
  ) -> tuple[Int[Array, 'B'], NestedMap]:
    """Returns which of the logits, and what changes in the loop's state.

    Args:
      prng_key: one key, or one for each row.
      logits: of the tokens to choose from.
      ids: those tokens; None for all in order.
      temperature: what logits are divided by, for all or by row, [B, 1].
      decode_loop_state: what the loop knows.
    """


class DefaultCategoricalLogitsSampler(BaseLogitsSampler):
  """Draws by probability: the highest of logits with Gumbel noise."""

  def __call__(
    self,
    prng_key: Array,
    logits: Float[Array, 'B K'],
    ids: Int[Array, 'B K'] | None,
    temperature: Temperature,
    decode_loop_state: NestedMap | None,
  ) -> tuple[Int[Array, 'B'], NestedMap]:
    """Returns which of the logits, and no change of state."""
    del ids, decode_loop_state
    # Equal to drawing from softmax(logits / temperature), and defined at 0.
    noise = gumbel(prng_key, logits.shape).astype(logits.dtype)
    noisy = logits + noise * (0.0 if temperature is None else temperature)
    return jnp.argmax(noisy, axis=-1).astype(jnp.int32), NestedMap()


class BaseNextTokenSampler(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Draws one token for each row of logits.

  The hooks let a sampler keep a state of its own in that of the loop: what
  it returns under a key that the loop's state has replaces the value there.
  """

  @abc.abstractmethod
  def __call__(
    self,
    model: Any,
    logits: Float[Array, 'B V'],
    temperature: Temperature,
    decode_loop_state: NestedMap,
    **per_example: Any,
  ) -> NestedMap:
    """Returns new_ids [B] and logits [B, V], those the log-probs are of.

    Args:
      model: knows the next random key.
      logits: of the next token.
      temperature: what logits are divided by, for all or by row, [B, 1].
      decode_loop_state: what the loop knows; see `sampling`.
      **per_example: per_example_top_p, per_example_top_k and gumbel_prng_key,
        each None or with a value for each row.
    """

  def init_decode_loop_state(
    self,
    decode_loop_state: NestedMap,
    model: Any = None,
    batch_size: int | None = None,
    eos_id: int | Sequence[int] | Array | None = None,
  ) -> NestedMap:
    """Returns the loop's first state, with what the sampler adds to it."""
    del model, batch_size, eos_id
    return decode_loop_state

  def post_process_decode_loop_state(
    self, decode_loop_state: NestedMap
  ) -> NestedMap:
    """Returns the loop's result, without what the sampler added to it."""
    return decode_loop_state

  @classmethod
  def get_extra_kwargs(
    cls, inputs: NestedMap, num_samples: int
  ) -> dict[str, Any]:
    """Returns fields of the sampler that a batch decides."""
    del inputs, num_samples
    return {}


class DefaultNextTokenSampler(BaseNextTokenSampler):
  """Draws from the top k, of those from the top p, if above epsilon."""

  # How many of the most probable tokens remain; 0 for all.
  top_k: int = 40
  # The remaining tokens' least total probability, after top_k; None for all.
  top_p: filters.TopP | None = None
  # The remaining tokens' least probability.
  epsilon_p: float = 0.0
  # Whether top_p is of all tokens' probability and not of the top k's.
  global_normalize: bool = False
  # Below 1, the share of the top k that a faster search has to find.
  top_k_recall_target: float = 1.0
  # Whether log-probabilities are normalised over the top k.
  use_top_k_for_logprobs: bool = False
  # Draws from what remains.
  logits_sampler: BaseLogitsSampler = pax_fiddle.instance_field(
    DefaultCategoricalLogitsSampler
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.top_k < 0:
      raise ValueError(f'top_k must be >= 0, got {self.top_k}; 0 keeps all')
    if isinstance(self.top_p, float) and not 0.0 < self.top_p <= 1.0:
      raise ValueError(f'top_p must be in (0, 1], got {self.top_p}')

  def __call__(
    self,
    model: Any,
    logits: Float[Array, 'B V'],
    temperature: Temperature,
    decode_loop_state: NestedMap,
    per_example_top_p: Float[Array, 'B *one'] | None = None,
    per_example_top_k: Int[Array, 'B'] | None = None,
    gumbel_prng_key: Array | None = None,
  ) -> NestedMap:
    """Returns new_ids, logits, and with use_top_k_for_logprobs
    logprobs_at_new_ids; see the base class."""
    output = NestedMap(logits=logits)
    if self.top_k == 1:
      output.new_ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
      return output
    top_p = self.top_p if per_example_top_p is None else per_example_top_p
    kept = filters.epsilon_mask_logits(logits, self.epsilon_p)
    top, ids = filters.get_top_k(
      kept, self.top_k, per_example_top_k, self.top_k_recall_target
    )
    filtered = self._within_top_p(top, kept, top_p)
    if self.top_k == 0 and not _may_draw(temperature):
      chosen, changes = jnp.argmax(filtered, axis=-1), NestedMap()
    else:
      key = next_key(model, gumbel_prng_key)
      chosen, changes = self.logits_sampler(
        key,
        filtered,
        ids if self.top_k else None,
        temperature,
        decode_loop_state,
      )
    output.new_ids = take(ids, chosen).astype(jnp.int32)
    if self.top_k and self.use_top_k_for_logprobs:
      logprobs = jax.nn.log_softmax(top.astype(jnp.float32))
      output.logprobs_at_new_ids = take(logprobs, chosen)
    return NestedMap(**output, **changes)

  def _within_top_p(
    self,
    top: Float[Array, 'B K'],
    logits: Float[Array, 'B V'],
    top_p: filters.TopP | None,
  ) -> Float[Array, 'B K']:
    if top_p is None:
      return top
    total = None
    if self.global_normalize:
      total = jax.nn.logsumexp(
        logits.astype(jnp.float32), axis=-1, keepdims=True
      )
    return filters.top_p_mask_logits(top, top_p, self.top_k > 0, total)


def next_key(model: Any, keys: Array | None) -> Array:
  """Returns the model's next key, or one for each row if `keys` are given.

  Those are raw, [B, 2]; where all are DUMMY_PRNG_KEY they come of the model's.
  """
  key = model.next_prng_key()
  if keys is None:
    return key
  own = jax.random.split(key, keys.shape[0])
  if jnp.issubdtype(own.dtype, jax.dtypes.prng_key):
    own = jax.random.key_data(own)
  is_dummy = jnp.all(keys == DUMMY_PRNG_KEY)
  return jax.random.wrap_key_data(jnp.where(is_dummy, own, keys))


def gumbel(keys: Array, shape: Sequence[int]) -> Float[Array, 'B K']:
  """Returns Gumbel noise of a key, or of a key for each row."""
  if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
    keys = jax.random.wrap_key_data(keys)
  if keys.ndim == 0:
    return jax.random.gumbel(keys, shape)
  if keys.shape != tuple(shape[:1]):
    raise ValueError(
      f'there must be one key, or one for each of {shape[0]} rows, got '
      f'{list(keys.shape)}'
    )
  return jax.vmap(lambda key: jax.random.gumbel(key, shape[1:]))(keys)


def take(x: Array, index: Int[Array, 'B']) -> Array:
  """Returns x[i, index[i]] of each row i."""
  return jnp.take_along_axis(x, index[:, jnp.newaxis], axis=1)[:, 0]


def sample_from_top_k_and_top_p(
  logits: Float[Array, 'B V'],
  prng_key: Array,
  temperature: Temperature,
  top_k: int,
  top_p: filters.TopP | None = None,
  **options: Any,
) -> tuple[Int[Array, 'B'], Float[Array, 'B']]:
  """Returns drawn tokens and their log-probabilities among the top k.

  Args:
    logits: of all tokens.
    prng_key: one key, or one for each row.
    temperature: what logits are divided by.
    top_k: how many of the most probable tokens remain; 0 for all.
    top_p: the remaining tokens' least total probability.
    **options: per_example_top_k, global_normalize, top_k_recall_target,
      logits_sampler and decode_loop_state.
  """
  top, ids = filters.get_top_k(
    logits,
    top_k,
    options.get('per_example_top_k'),
    options.get('top_k_recall_target', 1.0),
  )
  total = None
  if options.get('global_normalize'):
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  return sample_from_top_p_given_top_k(
    top,
    ids,
    prng_key,
    temperature,
    top_p,
    topk_is_sorted=top_k > 0,
    logits_sum=total,
    logits_sampler=options.get('logits_sampler'),
    decode_loop_state=options.get('decode_loop_state'),
  )


def sample_from_top_p_given_top_k(
  top_k_logits: Float[Array, 'B K'],
  top_k_indices: Int[Array, 'B K'],
  prng_key: Array,
  temperature: Temperature,
  top_p: filters.TopP | None = None,
  **options: Any,
) -> tuple[Int[Array, 'B'], Float[Array, 'B']]:
  """Returns drawn tokens and their log-probabilities among those given.

  Args:
    top_k_logits: of the tokens to choose from.
    top_k_indices: those tokens.
    prng_key: one key, or one for each row.
    temperature: what logits are divided by.
    top_p: the remaining tokens' least total probability.
    **options: topk_is_sorted (True), logits_sum (see top_p_mask_logits),
      logits_sampler and decode_loop_state.
  """
  sampler = options.get('logits_sampler') or DefaultCategoricalLogitsSampler()
  kept = top_k_logits
  if top_p is not None:
    kept = filters.top_p_mask_logits(
      kept,
      top_p,
      options.get('topk_is_sorted', True),
      options.get('logits_sum'),
    )
  chosen, _ = sampler(
    prng_key,
    kept,
    top_k_indices,
    temperature,
    options.get('decode_loop_state'),
  )
  logprobs = jax.nn.log_softmax(top_k_logits.astype(jnp.float32))
  return take(top_k_indices, chosen), take(logprobs, chosen)


def _may_draw(temperature: Temperature) -> bool:
  return isinstance(temperature, jax.Array) or bool(temperature)
