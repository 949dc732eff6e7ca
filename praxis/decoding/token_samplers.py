# SPDX-License-Identifier: Apache-2.0
"""Samplers of the next token from logits."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis import base_hyperparams, pax_fiddle
from praxis.decoding import logit_filters
from praxis.nested_map import NestedMap

# A gumbel_prng_key with this value everywhere means that the batch has no keys;
# servers pad requests with it.
DUMMY_PRNG_KEY = 15753

Temperature = float | Float[Array, '...'] | None


class BaseLogitsSampler(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Samples from filtered logits."""

  @abc.abstractmethod
  def __call__(
    self,
    prng_key: Array,
    logits: Float[Array, 'B K'],
    ids: Int[Array, 'B K'] | None,
    temperature: Temperature,
    decode_loop_state: NestedMap | None,
  ) -> tuple[Int[Array, ' B'], NestedMap]:
    """Returns indices into the logits, and updates of the loop state.

    Args:
      prng_key: one key, or one for each row.
      logits: of the candidate tokens.
      ids: the candidate tokens; None: all tokens in order.
      temperature: divisor of the logits, one or [B, 1].
      decode_loop_state: the state of the decode loop.
    """


class DefaultCategoricalLogitsSampler(BaseLogitsSampler):
  """Samples from softmax(logits / temperature) by the Gumbel-max trick.

  References: Categorical Reparameterization with Gumbel-Softmax, equation 1,
  https://arxiv.org/abs/1611.01144
  """

  def __call__(
    self,
    prng_key: Array,
    logits: Float[Array, 'B K'],
    ids: Int[Array, 'B K'] | None,
    temperature: Temperature,
    decode_loop_state: NestedMap | None,
  ) -> tuple[Int[Array, ' B'], NestedMap]:
    """Returns indices into the logits, and no updates; see the base class."""
    del ids, decode_loop_state
    # argmax(logits + temperature * noise) is also defined at temperature 0.
    noise = gumbel(prng_key, logits.shape).astype(logits.dtype)
    noisy = logits + noise * (0.0 if temperature is None else temperature)
    return jnp.argmax(noisy, axis=-1).astype(jnp.int32), NestedMap()


class BaseNextTokenSampler(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Samples one token for each row of logits.

  The hooks let a sampler keep its own entries in the state of the decode loop:
  values that `__call__` returns replace the entries of the same name.
  """

  @abc.abstractmethod
  def __call__(
    self,
    model: Any,
    logits: Float[Array, 'B V'],
    temperature: Temperature,
    decode_loop_state: NestedMap,
    per_example_top_p: Float[Array, ' B *one'] | None = None,
    per_example_top_k: Int[Array, ' B'] | None = None,
    gumbel_prng_key: Array | None = None,
  ) -> NestedMap:
    """Returns new_ids [B] and logits [B, V], for log-probabilities.

    Args:
      model: provides `next_prng_key`.
      logits: of the next token.
      temperature: divisor of the logits, one or [B, 1].
      decode_loop_state: the state of the decode loop; see `sampling`.
      per_example_top_p: one value per row; None: that of the sampler.
      per_example_top_k: the same.
      gumbel_prng_key: a raw key per row; None: the model's random stream.
    """

  def init_decode_loop_state(
    self,
    decode_loop_state: NestedMap,
    model: Any = None,
    batch_size: int | None = None,
    eos_id: int | Sequence[int] | Array | None = None,
  ) -> NestedMap:
    """Returns the initial loop state with the sampler's own entries.

    Args:
      decode_loop_state: the initial state without them.
      model: the bound model.
      batch_size: number of rows.
      eos_id: end-of-sequence ids or stop sequences.
    """
    del model, batch_size, eos_id
    return decode_loop_state

  def post_process_decode_loop_state(
    self, decode_loop_state: NestedMap
  ) -> NestedMap:
    """Returns the result of the loop without the sampler's own entries."""
    return decode_loop_state

  @classmethod
  def get_extra_kwargs(
    cls, inputs: NestedMap, num_samples: int
  ) -> dict[str, Any]:
    """Returns fields of the sampler that depend on the batch."""
    del inputs, num_samples
    return {}


class DefaultNextTokenSampler(BaseNextTokenSampler):
  """Samples from the tokens that pass epsilon, top-k and top-p filters.

  References: Hierarchical Neural Story Generation (top-k sampling),
  https://arxiv.org/abs/1805.04833; The Curious Case of Neural Text Degeneration
  (top-p sampling), https://arxiv.org/abs/1904.09751
  """

  # Number of top tokens to sample from; 0: all, 1: greedy.
  top_k: int = 40
  # Total probability of the tokens to sample from; None: 1.
  top_p: logit_filters.TopP | None = None
  # Smallest probability of a token to sample.
  epsilon_p: float = 0.0
  # Whether the filters see logits over the temperature, as those of
  # transformers and vLLM do, instead of the logits.
  filters_at_temperature: bool = False
  # Whether top_p is a share of the sum of all logits, instead of the top k's
  # probability; see `logit_filters.sum_of_logits`.
  global_normalize: bool = False
  # Below 1, the expected recall of an approximate top k.
  top_k_recall_target: float = 1.0
  # Whether log-probabilities are normalized over the top k tokens.
  use_top_k_for_logprobs: bool = False
  # Samples from the filtered logits.
  logits_sampler: BaseLogitsSampler = pax_fiddle.instance_field(
    default_factory=DefaultCategoricalLogitsSampler
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
    per_example_top_p: Float[Array, ' B *one'] | None = None,
    per_example_top_k: Int[Array, ' B'] | None = None,
    gumbel_prng_key: Array | None = None,
  ) -> NestedMap:
    """Returns new_ids, logits and updates of the loop state.

    Args:
      model: provides `next_prng_key`.
      logits: of the next token.
      temperature: divisor of the logits, one or [B, 1].
      decode_loop_state: the state of the decode loop.
      per_example_top_p: overrides top_p.
      per_example_top_k: lowers top_k.
      gumbel_prng_key: raw keys of the rows, [B, 2].

    Returns:
      new_ids [B], logits [B, V], and with use_top_k_for_logprobs
      logprobs_at_new_ids [B].
    """
    output = NestedMap(logits=logits)
    if self.top_k == 1:
      output.new_ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
      return output
    if self.filters_at_temperature and not _is_greedy(temperature):
      logits, temperature = logits / jnp.asarray(temperature), 1.0
    top_p = self.top_p if per_example_top_p is None else per_example_top_p
    masked = logit_filters.epsilon_mask_logits(logits, self.epsilon_p)
    top_logits, ids = logit_filters.get_top_k(
      masked, self.top_k, per_example_top_k, self.top_k_recall_target
    )
    filtered = self._filter_top_p(top_logits, masked, top_p)
    if self.top_k == 0 and _is_greedy(temperature):
      index, updates = jnp.argmax(filtered, axis=-1), NestedMap()
    else:
      key = next_key(model, gumbel_prng_key)
      index, updates = self.logits_sampler(
        key,
        filtered,
        ids if self.top_k else None,
        temperature,
        decode_loop_state,
      )
    output.new_ids = take(ids, index).astype(jnp.int32)
    if self.top_k and self.use_top_k_for_logprobs:
      logprobs = jax.nn.log_softmax(top_logits.astype(jnp.float32))
      output.logprobs_at_new_ids = take(logprobs, index)
    return NestedMap(**output, **updates)

  def _filter_top_p(
    self,
    top_logits: Float[Array, 'B K'],
    logits: Float[Array, 'B V'],
    top_p: logit_filters.TopP | None,
  ) -> Float[Array, 'B K']:
    if top_p is None:
      return top_logits
    logits_sum = None
    if self.top_k and self.global_normalize:
      logits_sum = logit_filters.sum_of_logits(logits)
    return logit_filters.top_p_mask_logits(
      top_logits, top_p, self.top_k > 0, logits_sum
    )


def next_key(model: Any, keys: Array | None) -> Array:
  """Returns the model's next key, or `keys` as one typed key for each row.

  Args:
    model: provides `next_prng_key`.
    keys: raw keys, [B, 2]; where all are DUMMY_PRNG_KEY the rows get keys split
      from the model's.
  """
  key = model.next_prng_key()
  if keys is None:
    return key
  split_keys = jax.random.split(key, keys.shape[0])
  if jnp.issubdtype(split_keys.dtype, jax.dtypes.prng_key):
    split_keys = jax.random.key_data(split_keys)
  is_dummy = jnp.all(keys == DUMMY_PRNG_KEY)
  return jax.random.wrap_key_data(jnp.where(is_dummy, split_keys, keys))


def gumbel(keys: Array, shape: Sequence[int]) -> Float[Array, 'B K']:
  """Returns Gumbel noise from one key, or from a key for each row.

  Raises:
    ValueError: there are several keys, but not one for each row.
  """
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


def take(x: Shaped[Array, 'B K'], index: Int[Array, ' B']) -> Array:
  """Returns x[i, index[i]] of each row i, its last entry if that is beyond.

  The tokens of a prompt may be beyond the vocabulary of the logits.
  """
  columns = index[:, jnp.newaxis]
  return jnp.take_along_axis(x, columns, axis=1, mode='clip')[:, 0]


def sample_from_top_k_and_top_p(
  logits: Float[Array, 'B V'],
  prng_key: Array,
  temperature: Temperature,
  top_k: int,
  top_p: logit_filters.TopP | None = None,
  per_example_top_k: Int[Array, ' B'] | None = None,
  global_normalize: bool = False,
  top_k_recall_target: float = 1.0,
  logits_sampler: BaseLogitsSampler | None = None,
  decode_loop_state: NestedMap | None = None,
) -> tuple[Int[Array, ' B'], Float[Array, ' B']]:
  """Returns sampled tokens and their log-probabilities within the top k.

  Args:
    logits: of all tokens.
    prng_key: one key, or one for each row.
    temperature: divisor of the logits.
    top_k: number of top tokens to sample from; 0: all.
    top_p: total probability of the tokens to sample from.
    per_example_top_k: a smaller k for each row.
    global_normalize: whether top_p is a share of the sum of all logits.
    top_k_recall_target: below 1, the recall of an approximate top k.
    logits_sampler: samples from the filtered logits; None: the default one.
    decode_loop_state: passed to the sampler.
  """
  top_logits, ids = logit_filters.get_top_k(
    logits, top_k, per_example_top_k, top_k_recall_target
  )
  logits_sum = None
  if global_normalize:
    logits_sum = logit_filters.sum_of_logits(logits)
  return sample_from_top_p_given_top_k(
    top_logits,
    ids,
    prng_key,
    temperature,
    top_p,
    topk_is_sorted=top_k > 0,
    logits_sum=logits_sum,
    logits_sampler=logits_sampler,
    decode_loop_state=decode_loop_state,
  )


def sample_from_top_p_given_top_k(
  top_k_logits: Float[Array, 'B K'],
  top_k_indices: Int[Array, 'B K'],
  prng_key: Array,
  temperature: Temperature,
  top_p: logit_filters.TopP | None = None,
  topk_is_sorted: bool = True,
  logits_sum: Float[Array, 'B 1'] | None = None,
  logits_sampler: BaseLogitsSampler | None = None,
  decode_loop_state: NestedMap | None = None,
) -> tuple[Int[Array, ' B'], Float[Array, ' B']]:
  """Returns sampled tokens and their log-probabilities within the top k.

  Args:
    top_k_logits: of the candidate tokens.
    top_k_indices: the candidate tokens.
    prng_key: one key, or one for each row.
    temperature: divisor of the logits.
    top_p: total probability of the tokens to sample from.
    topk_is_sorted: whether the logits are in descending order.
    logits_sum: see `logit_filters.top_p_mask_logits`.
    logits_sampler: samples from the filtered logits; None: the default one.
    decode_loop_state: passed to the sampler.
  """
  sampler = logits_sampler or DefaultCategoricalLogitsSampler()
  filtered = top_k_logits
  if top_p is not None:
    filtered = logit_filters.top_p_mask_logits(
      filtered, top_p, topk_is_sorted, logits_sum
    )
  index, _ = sampler(
    prng_key, filtered, top_k_indices, temperature, decode_loop_state
  )
  logprobs = jax.nn.log_softmax(top_k_logits.astype(jnp.float32))
  return take(top_k_indices, index), take(logprobs, index)


def _is_greedy(temperature: Temperature) -> bool:
  """Returns whether the temperature is statically 0 or None."""
  return not isinstance(temperature, jax.Array) and not temperature
